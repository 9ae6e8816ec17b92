#!/bin/sh
# A plugin that runs the real one, and has a fault before, during or after that. The
# settings are in a file beside it, see the type fault.
. "$0.fault"
conf=$(cat)

# copy copies directories below a new one that is named after the next number, the moment
# and the plugin. A mounted namespace becomes an empty file.
copy() {
	if [ "$copies" ]; then
		step=$(printf '%s/%02d %s %s %s' "$copies" "$(ls "$copies" 2>/dev/null | wc -l)" "$CNI_COMMAND" "$1" "${0##*/}")
		mkdir -p "$step"
		cp -r $copied "$step" 2>/dev/null
	fi
}

faulty() {
	[ "$verb" = "$CNI_COMMAND" ] && [ "$at" = "$1" ] || return 1
	case $conf in
	*"\"name\":\"$network"*) return 0 ;;
	*) return 1 ;;
	esac
}

die() {
	case $kill in
	self) kill -KILL $$ ;;
	group) kill -KILL 0 ;;
	parent) kill -KILL $PPID ;;
	esac
}

# fail is for before and after the real plugin.
fail() {
	if [ "$fork" = true ]; then sleep infinity & fi
	die
	head -c "$flood" /dev/zero | tr '\0' x
	printf %s "$stdout"
	if [ "$hang" = true ]; then # in this very process, which has the plugin's name
		mkfifo "$0.$$"
		read -r nothing <"$0.$$"
	fi
	if [ "$ends" = true ]; then exit "$exit"; fi
}

# interrupted runs the real plugin, and interrupts it. Its own children, such as iptables,
# keep running.
interrupted() {
	printf %s "$conf" | "$real" &
	pid=$!
	if [ "$delay" != 0 ]; then sleep "$delay"; fi # at once is before sleep would begin
	case $kill in
	group | parent) die ;;
	*) kill -"$signal" $pid 2>/dev/null ;;
	esac
	wait $pid
}

copy before
if faulty before; then fail; fi
if faulty during; then out=$(interrupted); else out=$(printf %s "$conf" | "$real"); fi
code=$?
if [ $code -gt 128 ]; then kill -KILL $$; fi # as the real one was
copy after
if faulty after; then fail; fi
printf %s "$out"
exit $code

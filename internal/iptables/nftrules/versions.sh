#!/bin/sh
# versions.sh DIRECTORY fetches the versions of iptables that Debian's archive has, each
# with its libraries: DIRECTORY/1.8.7 is the root directory of one. It installs nothing.
# The tests of this package use them if IPTABLES_VERSIONS names DIRECTORY.
set -eu
directory=$1
packages='iptables libxtables12 libip4tc2 libip6tc2 libnftnl11 libmnl0 libc6'
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for suite in bullseye bookworm trixie sid; do
	at=$work/$suite
	mkdir -p "$at/lists/partial" "$at/cache/archives/partial" "$at/debs"
	: >"$at/status"
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $suite main" >"$at/sources"
	set -- -qq -o Dir::Etc::SourceList="$at/sources" -o Dir::Etc::SourceParts=/dev/null -o Dir::State::Lists="$at/lists" \
		-o Dir::State::Status="$at/status" -o Dir::Cache="$at/cache" -o APT::Sandbox::User=root -o Acquire::Languages=none
	apt-get "$@" update
	# shellcheck disable=SC2086 # the names are words
	(cd "$at/debs" && apt-get "$@" download $packages)
	version=$(dpkg-deb -f "$at"/debs/iptables_*.deb Version)
	root=$directory/${version%%-*}
	rm -rf "$root"
	for name in lib lib64 sbin bin; do
		mkdir -p "$root/usr/$name"
		ln -s "usr/$name" "$root/$name" # earlier releases have files in both
	done
	for deb in "$at"/debs/*.deb; do
		dpkg-deb --fsys-tarfile "$deb" | tar -x --keep-directory-symlink -C "$root"
	done
	rm -rf "$root/usr/share"
	chroot "$root" /usr/sbin/xtables-nft-multi iptables --version
done

package proc

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/embedcni/cni/internal/kernel/plainfile"
)

// Self returns the identity of this process: its number and its start time,
// because numbers are reused.
func Self() (string, error) { return identify(os.Getpid()) }

func identify(pid int) (string, error) {
	data, err := plainfile.Read(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	started, err := startTime(string(data))
	if err != nil {
		return "", fmt.Errorf("/proc/%d/stat: %w", pid, err)
	}
	return fmt.Sprintf("%d:%s", pid, started), nil
}

// errEnded: the process has ended, but its parent has not waited for it yet.
var errEnded = errors.New("the process has ended")

// startTime returns field 22 of proc_pid_stat(5). The second field is the
// command in parentheses and may contain anything, parentheses too.
func startTime(stat string) (string, error) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	const after = 22 - 3 // the first field behind the command is the third
	if len(fields) <= after {
		return "", errors.New("too few fields")
	}
	if state := fields[0]; state == "Z" || state == "X" {
		return "", errEnded
	}
	return fields[after], nil
}

// Alive reports whether the process with an identity that Self returned in this
// PID namespace still runs.
func Alive(identity string) (bool, error) {
	number, _, err := parse(identity)
	if err != nil {
		return false, err
	}
	now, err := identify(number)
	if ended(err) {
		return false, nil
	}
	return now == identity, err
}

func parse(identity string) (number int, started string, err error) {
	text, started, ok := strings.Cut(identity, ":")
	number, err = strconv.Atoi(text)
	if !ok || err != nil {
		return 0, "", fmt.Errorf("%q is not the identity of a process", identity)
	}
	return number, started, nil
}

// ended reports whether an error of reading about a process means that it is
// gone.
func ended(err error) bool {
	return Gone(err) || errors.Is(err, errEnded)
}

// PIDNS returns the PID namespace of this process, or 0 if it is unknown.
func PIDNS() uint64 {
	info, err := os.Stat("/proc/self/ns/pid")
	if err != nil {
		return 0
	}
	return info.Sys().(*syscall.Stat_t).Ino
}

// InitialPIDNS is the kernel's PROC_PID_INIT_INO: in this namespace every
// process of the machine is visible.
const InitialPIDNS = 0xEFFFFFFC

// SeesAll reports whether every process that can refer to a namespace is visible from this
// one, if a process in a PID namespace has recorded it: that is this one's, or this one's is
// the machine's first.
func SeesAll(pidNS uint64) bool {
	own := PIDNS()
	return own == InitialPIDNS || own != 0 && own == pidNS
}

// AliveIn is Alive for an identity whose number is of another PID namespace, or
// of an unknown one, which is 0. It reports an invisible process as alive.
func AliveIn(pidNS uint64, identity string) (bool, error) {
	own := PIDNS()
	switch {
	case !ownProc() || !showsOthers():
		return true, nil
	case pidNS != 0 && pidNS == own:
		return Alive(identity)
	case own != InitialPIDNS:
		return true, nil
	}
	return aliveAnywhere(identity)
}

// ownProc reports whether /proc is of this process's PID namespace.
func ownProc() bool {
	self, err := os.Readlink("/proc/self")
	return err == nil && self == strconv.Itoa(os.Getpid())
}

// showsOthers reports whether /proc shows processes of other users. Mounted with
// hidepid=2 it does not show init.
func showsOthers() bool {
	_, err := plainfile.Read("/proc/1/stat")
	return err == nil
}

// aliveAnywhere looks for the identity among all numbers of each process, one
// for each PID namespace that the process is in.
func aliveAnywhere(identity string) (bool, error) {
	_, started, err := parse(identity)
	if err != nil {
		return false, err
	}
	number, _, _ := strings.Cut(identity, ":")
	pids, err := Numbers("/proc")
	if err != nil {
		return false, err
	}
	for _, pid := range pids {
		status, err := plainfile.Read(fmt.Sprintf("/proc/%d/status", pid))
		if ended(err) {
			continue
		}
		if err != nil {
			return false, err
		}
		if !slices.Contains(numbers(string(status)), number) {
			continue
		}
		now, err := identify(pid)
		if ended(err) {
			continue
		}
		if _, since, _ := strings.Cut(now, ":"); since == started || err != nil {
			return true, err
		}
	}
	return false, nil
}

// numbers returns a process's numbers in its PID namespaces, from its
// proc_pid_status(5), "NSpid:\t4711\t1".
func numbers(status string) []string {
	for line := range strings.Lines(status) {
		if list, ok := strings.CutPrefix(line, "NSpid:"); ok {
			return strings.Fields(list)
		}
	}
	return nil
}

// BootID returns an identity that changes with each boot of the machine.
func BootID() (string, error) {
	data, err := plainfile.Read("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("boot id: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

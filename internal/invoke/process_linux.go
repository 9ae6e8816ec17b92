package invoke

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/proc"
)

// childInfo is the part of siginfo_t that waitid(2) fills in after the three
// numbers of unix.Siginfo. That union is aligned like a pointer.
type childInfo struct {
	_     [3]int32
	child struct {
		_      [0]uintptr
		pid    int32
		uid    uint32
		status int32
	}
}

// awaitExit waits for the end of a process and leaves it a zombie. While it is
// one, its number, which is the group's, belongs to nobody else, so killing the
// group cannot hit a stranger.
func awaitExit(cmd *exec.Cmd) (exit, error) {
	const cldExited = 1 // CLD_EXITED of <signal.h>: by itself, not by a signal
	var info unix.Siginfo
	for {
		err := unix.Waitid(unix.P_PID, cmd.Process.Pid, &info, unix.WEXITED|unix.WNOWAIT, nil)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			return exit{}, os.NewSyscallError("waitid", err)
		}
	}
	status := (*childInfo)(unsafe.Pointer(&info)).child.status
	if info.Code == cldExited {
		return exit{code: int(status)}, nil
	}
	return exit{code: -1, signal: syscall.Signal(status)}, nil
}

// groupLives reports whether the group has a process that is not a zombie. It
// reads all of /proc, which takes a few milliseconds on a busy machine; it is
// called only for a killed group that did not vanish at once.
func groupLives(pgid int) bool {
	pids, err := proc.Numbers("/proc")
	if err != nil {
		return true // not known
	}
	for _, pid := range pids {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue // it ended meanwhile
		}
		if group, lives := parseStat(string(stat)); group == pgid && lives {
			return true
		}
	}
	return false
}

// parseStat returns the process group in /proc/PID/stat, and reports whether the
// process lives: the dead leader of live threads is shown as a zombie too.
//
//	4711 (a name) S 1 4711 4711 0 -1 4194560 190 0 0 0 0 0 0 0 20 0 1 0 …
//	the state ----^   ^-- the group                       threads --^
func parseStat(stat string) (pgid int, lives bool) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:]) // the name may hold anything
	if len(fields) < 18 {
		return 0, false
	}
	pgid, err := strconv.Atoi(fields[2])
	if err != nil {
		return 0, false
	}
	dead := fields[0] == "Z" || fields[0] == "X"
	threads := fields[17]
	return pgid, !dead || threads != "0" && threads != "1"
}

// reap reaps the zombie and closes its descriptor.
func (p *process) reap() {
	// The exit is known by now, or never will be.
	_ = p.cmd.Wait()
	_ = p.cmd.Process.Release()
}

package invoke

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
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

// reap reaps the zombie and closes its descriptor.
func (p *process) reap() {
	// The exit is known by now, or never will be.
	_ = p.cmd.Wait()
	_ = p.cmd.Process.Release()
}

package invoke

import (
	"errors"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// childInfo is the head of siginfo_t as waitid(2) fills it in, beyond the three
// numbers that unix.Siginfo names. The union behind them is aligned like a
// pointer.
type childInfo struct {
	_     [3]int32
	child struct {
		_      [0]uintptr
		pid    int32
		uid    uint32
		status int32
	}
}

// awaitExit waits for the end of a process and leaves it a zombie. As long as
// it is one, its number, which is the group's, belongs to nobody else, and the
// group can be killed without fear for a stranger.
func awaitExit(proc *os.Process) (exit, error) {
	const cldExited = 1 // CLD_EXITED of <signal.h>: by itself, not by a signal
	var info unix.Siginfo
	for {
		err := unix.Waitid(unix.P_PID, proc.Pid, &info, unix.WEXITED|unix.WNOWAIT, nil)
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

// reap removes the zombie and gives its descriptor back.
func (p *process) reap() {
	// How it ended is known, or nobody will ever know.
	_ = p.cmd.Wait()
	_ = p.cmd.Process.Release()
}

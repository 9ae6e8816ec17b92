//go:build unix

package invoke

import (
	"errors"
	"os"
	"syscall"
)

// attributes puts a plugin into a process group of its own, with the root.
func attributes(root Root) *syscall.SysProcAttr {
	// No Pdeathsig: it refers to the thread that forked, not the process, and Go
	// ends threads at any time.
	return &syscall.SysProcAttr{Setpgid: true, Chroot: string(root)}
}

// killGroup also kills the leader by itself, in case it moved to another group.
// It ignores errors: waiting for the process shows whether it worked.
func killGroup(leader *os.Process) {
	_ = syscall.Kill(-leader.Pid, syscall.SIGKILL)
	_ = leader.Kill()
}

// groupExists reports whether the group still has a process, zombies included.
func groupExists(pgid int) bool {
	return !errors.Is(syscall.Kill(-pgid, 0), syscall.ESRCH)
}

// readNow reads the data in a pipe without waiting, regardless of its deadline.
// 0 means that the pipe is empty or at its end.
func readNow(f *os.File, p []byte) int {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0
	}
	var n int
	err = raw.Control(func(fd uintptr) {
		for {
			n, err = syscall.Read(int(fd), p) // os.Pipe made it non-blocking
			if !errors.Is(err, syscall.EINTR) {
				return
			}
		}
	})
	if err != nil || n < 0 {
		return 0
	}
	return n
}

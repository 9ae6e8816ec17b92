//go:build unix

package invoke

import (
	"errors"
	"os"
	"syscall"
)

func processGroup() *syscall.SysProcAttr {
	// No Pdeathsig: it means the thread that forked, not the process, and
	// threads of Go come and go.
	return &syscall.SysProcAttr{Setpgid: true}
}

// killGroup kills the leader by itself as well, in case it moved to another
// group. Errors are of no use to anybody: whether it worked shows when the
// process is waited for.
func killGroup(leader *os.Process) {
	_ = syscall.Kill(-leader.Pid, syscall.SIGKILL)
	_ = leader.Kill()
}

// groupExists reports whether a process of the group is left, zombies included.
func groupExists(pgid int) bool {
	return !errors.Is(syscall.Kill(-pgid, 0), syscall.ESRCH)
}

// readNow reads the data in a pipe without waiting, whatever its deadline. 0 means that
// it is empty or at its end.
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

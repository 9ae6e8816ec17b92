package sandbox

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/netns"
)

// start runs the program inside and returns its exit code. With adopts, this
// process waits for the program's orphans too.
func start(env []string, adopts bool) (int, error) {
	outside, err := netns.CurrentID()
	if err != nil {
		return 1, err
	}
	env = append(env, marker+"="+outside.String())
	if adopts {
		if err := adoptOrphans(); err != nil {
			return 1, err
		}
		env = append(env, orphansOutside+"=1")
	}

	// The child must die with its parent. For the kernel that is the starting
	// thread, so that thread must live as long as the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	// Before the start, so that no signal reaches only the outer process.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGQUIT)
	defer signal.Stop(signals)

	cmd, err := startAny(env, attempts())
	if err != nil {
		return 1, err
	}
	return wait(cmd, signals)
}

// startAny starts the program in the first way that the kernel allows.
func startAny(env []string, ways []*syscall.SysProcAttr) (*exec.Cmd, error) {
	var refusals []error
	for _, attr := range ways {
		cmd := &exec.Cmd{
			// Not os.Executable: the file may have been replaced since.
			Path:   "/proc/self/exe",
			Args:   os.Args,
			Env:    env,
			Stdin:  os.Stdin,
			Stdout: os.Stdout,
			Stderr: os.Stderr,
		}
		cmd.SysProcAttr = attr
		err := cmd.Start()
		if err == nil {
			return cmd, nil
		}
		if !refused(err) {
			return nil, err
		}
		refusals = append(refusals, err)
	}
	return nil, fmt.Errorf("%w: %w", ErrRefused, errors.Join(refusals...))
}

// refused reports whether err means that the kernel does not allow namespaces
// or these mappings: no privilege, a security module, the limit of user
// namespaces, or a kernel without them.
func refused(err error) bool {
	for _, errno := range []syscall.Errno{unix.EPERM, unix.EACCES, unix.ENOSPC, unix.EUSERS, unix.EINVAL, unix.ENOSYS} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// wait waits for cmd and forwards signals to it. Meanwhile it waits for every
// other child that ends: an orphan, if this process adopts them.
func wait(cmd *exec.Cmd, signals <-chan os.Signal) (int, error) {
	go func() {
		for sig := range signals {
			_ = cmd.Process.Signal(sig) // a process that has just ended needs no signal
		}
	}()
	for {
		var status syscall.WaitStatus
		switch ended, err := syscall.Wait4(-1, &status, 0, nil); {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 1, fmt.Errorf("wait for the inner process: %w", err)
		case ended == cmd.Process.Pid:
			return exitCode(status), nil
		}
	}
}

func exitCode(status syscall.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

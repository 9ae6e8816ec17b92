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

// start runs the program inside and returns its exit code.
func start(env []string) (int, error) {
	outside, err := netns.CurrentID()
	if err != nil {
		return 1, err
	}
	env = append(env, marker+"="+outside.String())

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

// wait waits for cmd and forwards signals to it.
func wait(cmd *exec.Cmd, signals <-chan os.Signal) (int, error) {
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	for {
		select {
		case sig := <-signals:
			// A process that has just ended needs no signal.
			if err := cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
				return 1, fmt.Errorf("pass on %v: %w", sig, err)
			}
		case err := <-done:
			return exitCode(err)
		}
	}
}

func exitCode(err error) (int, error) {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0, nil
	case !errors.As(err, &exit):
		return 1, err
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	if ok && status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return exit.ExitCode(), nil
}

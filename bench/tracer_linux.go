package main

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// tracer counts the processes that a program and its descendants start. It is
// exact: the kernel stops each process that forks and reports the fork before
// the process continues (ptrace(2), PTRACE_O_TRACEFORK). It also distinguishes
// processes from threads. It is slow, so nothing is timed under it.
type tracer struct {
	processes atomic.Int64
	done      chan error
}

const traced = unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_EXITKILL

// startTraced starts cmd. The starting thread is its tracer and waits for it.
func startTraced(cmd *exec.Cmd) (*tracer, error) {
	t := &tracer{done: make(chan error, 1)}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the tracer is this thread
		if cmd.SysProcAttr == nil {
			cmd.SysProcAttr = &unix.SysProcAttr{}
		}
		cmd.SysProcAttr.Ptrace = true
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		started <- nil
		t.done <- t.follow(cmd.Process.Pid)
	}()
	return t, <-started
}

func (t *tracer) wait() error { return <-t.done }

// follow resumes every process that stops, until the first process ends.
func (t *tracer) follow(first int) error {
	var status unix.WaitStatus
	if _, err := wait4(first, &status); err != nil {
		return fmt.Errorf("wait for the traced process: %w", err)
	}
	if err := unix.PtraceSetOptions(first, traced); err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	if err := unix.PtraceCont(first, 0); err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	for {
		pid, err := wait4(-1, &status)
		if err != nil {
			return fmt.Errorf("wait for traced processes: %w", err)
		}
		if status.Exited() || status.Signaled() {
			if pid != first {
				continue
			}
			if status.Signaled() || status.ExitStatus() != 0 {
				return fmt.Errorf("the traced process ended with status %#x", uint32(status))
			}
			return nil
		}
		// A process that was killed while stopped needs no permission to
		// continue.
		if err := unix.PtraceCont(pid, t.stopped(status)); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("continue process %d: %w", pid, err)
		}
	}
}

// stopped returns the signal to deliver.
func (t *tracer) stopped(status unix.WaitStatus) int {
	switch cause := status.TrapCause(); {
	case cause == unix.PTRACE_EVENT_FORK, cause == unix.PTRACE_EVENT_VFORK:
		t.processes.Add(1)
		return 0
	case cause > 0, status.StopSignal() == unix.SIGTRAP, status.StopSignal() == unix.SIGSTOP:
		// A new thread, an exec, or the start of a traced process.
		return 0
	}
	return int(status.StopSignal())
}

// wait4 waits for the processes that this thread traces, and for no other
// thread's children.
func wait4(pid int, status *unix.WaitStatus) (int, error) {
	for {
		got, err := unix.Wait4(pid, status, unix.WALL|unix.WNOTHREAD, nil)
		if !errors.Is(err, unix.EINTR) {
			return got, err
		}
	}
}

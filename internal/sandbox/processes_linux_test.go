package sandbox_test

import (
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/sandbox"
)

func TestNoProcess(t *testing.T) {
	failure := errors.New("failure")
	if err := sandbox.NoProcess(func() error { return failure }); !errors.Is(err, failure) || errors.Is(err, sandbox.ErrProcessStarted) {
		t.Errorf("nothing was started: %v", err)
	}
	if err := sandbox.NoProcess(manyThreads); err != nil {
		t.Errorf("only threads were started: %v", err)
	}
	var running *exec.Cmd
	for what, start := range map[string]func() error{
		"one that has ended":       func() error { return exec.Command("true").Run() },
		"one that fails":           func() error { _ = exec.Command("false").Run(); return nil },
		"one that nobody has":      func() error { return exec.Command("sh", "-c", "true").Start() },
		"one that goes on running": func() error { running = exec.Command("sleep", "60"); return running.Start() },
		"an orphan":                func() error { return exec.Command("sh", "-c", "sleep 0.2 & exit 0").Run() },
	} {
		if err := sandbox.NoProcess(start); !errors.Is(err, sandbox.ErrProcessStarted) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := sandbox.NoProcess(func() error { return nil }); err != nil {
		t.Errorf("an earlier child: %v", err)
	}
	if err := errors.Join(running.Process.Signal(os.Kill), ignoreExit(running.Wait())); err != nil {
		t.Error(err)
	}
	reap(t)
}

func ignoreExit(err error) error {
	if errors.As(err, new(*exec.ExitError)) {
		return nil
	}
	return err
}

// manyThreads starts threads by blocking in system calls.
func manyThreads() error {
	var pipes [2]int
	if err := unix.Pipe(pipes[:]); err != nil {
		return err
	}
	done := make(chan error)
	for range 10 {
		go func() {
			_, err := unix.Read(pipes[0], make([]byte, 1))
			done <- err
		}()
	}
	_, err := unix.Write(pipes[1], make([]byte, 10))
	for range 10 {
		err = errors.Join(err, <-done)
	}
	return errors.Join(err, unix.Close(pipes[0]), unix.Close(pipes[1]))
}

// reap waits for the test's remaining children.
func reap(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		pid, err := unix.Wait4(-1, nil, 0, nil)
		if errors.Is(err, unix.ECHILD) {
			return
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			t.Fatalf("wait for %d: %v", pid, err)
		}
	}
	t.Error("children are left")
}

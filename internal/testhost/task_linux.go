package testhost

import (
	"fmt"
	"os/exec"
	"syscall"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/netns"
)

// Task is a container's process in a network namespace that only the process
// keeps alive.
type Task struct {
	cmd *exec.Cmd
}

// NewTask starts a task, which is killed when the test ends.
func NewTask(t testing.TB) *Task {
	t.Helper()
	// Start waits for the exec, so the process is in the namespace when Start
	// returns.
	k := &Task{exec.Command("sleep", "600")}
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNET}
	expect.NoError(t, k.cmd.Start())
	t.Cleanup(k.Kill)
	expect.NoError(t, netns.Do(k.Path(), nettest.NoAddressDetection))
	return k
}

// Path returns the path of the namespace.
func (k *Task) Path() string { return fmt.Sprintf("/proc/%d/ns/net", k.cmd.Process.Pid) }

// Kill ends the process, and with it the namespace.
func (k *Task) Kill() {
	_ = k.cmd.Process.Kill() // or it was killed before
	_ = k.cmd.Wait()         // it was killed
}

package testhost

import (
	"bufio"
	"errors"
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
	t   *testing.T
	cmd *exec.Cmd
}

// NewTask starts a task, which is killed when the test ends.
func NewTask(t *testing.T) *Task {
	t.Helper()
	cmd := exec.Command("sh", "-c", "echo; exec sleep 600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNET}
	out, err := cmd.StdoutPipe()
	expect.NoError(t, errors.Join(err, cmd.Start()))
	k := &Task{t, cmd}
	t.Cleanup(k.Kill)
	_, err = bufio.NewReader(out).ReadString('\n')
	expect.NoError(t, err)
	ns, err := netns.Open(k.Path())
	expect.NoError(t, err)
	expect.NoError(t, errors.Join(ns.Do(nettest.NoAddressDetection), ns.Close()))
	return k
}

// Path returns the path of the namespace.
func (k *Task) Path() string { return fmt.Sprintf("/proc/%d/ns/net", k.cmd.Process.Pid) }

// Kill ends the process, and with it the namespace.
func (k *Task) Kill() {
	_ = k.cmd.Process.Kill() // or it was killed before
	_ = k.cmd.Wait()         // it was killed
}

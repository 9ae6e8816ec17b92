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

// NewTask starts a container's process in a network namespace that only the process
// keeps alive. It returns the path of the namespace, and a function that ends the process
// and with it the namespace, as the test's end does.
func NewTask(t testing.TB) (path string, kill func()) {
	t.Helper()
	// Start waits for the exec, so the process is in the namespace when Start
	// returns.
	cmd := exec.Command("sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNET}
	expect.NoError(t, cmd.Start())
	kill = func() {
		_ = cmd.Process.Kill() // or it was killed before
		_ = cmd.Wait()         // it was killed
	}
	t.Cleanup(kill)
	path = fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid)
	expect.NoError(t, netns.Do(path, nettest.NoAddressDetection))
	return path, kill
}

package outcome

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
)

// TestACapabilityIsNamedOnce: by the part that was refused, or else by the hint. The thread that
// lacks them ends.
func TestACapabilityIsNamedOnce(t *testing.T) {
	const head = `add network "net": plugin type="p" failed (add): `
	texts := make(chan string, 2)
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		err := unix.Capset(&header, &none[0])
		for _, msg := range []string{"operation not permitted", "nftables: operation not permitted: it needs the capability CAP_NET_ADMIN"} {
			texts <- (&Error{Op: "ADD", Network: "net", Plugin: "p", Msg: msg}).Error()
		}
		done <- err
	}()
	expect.NoError(t, <-done)
	expect.Same(t, "a plugin's own words", <-texts, head+"operation not permitted; plugins need CAP_NET_ADMIN and CAP_SYS_ADMIN, which this process lacks")
	expect.Same(t, "a capability", <-texts, head+"nftables: operation not permitted: it needs the capability CAP_NET_ADMIN")
}

package behaviour_test

import (
	"fmt"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// TestFault_F37_RecoverDoubtsAContainerThatIsAsItsChainMadeIt: CHECK in the
// next process reads the notes that the chain's plugins made at ADD. Of two
// tuning plugins, the first does not expect its values back. An interface that
// loopback has not made is not missed either, as with CRI-O's
// 200-loopback.conflist.
func TestFault_F37_RecoverDoubtsAContainerThatIsAsItsChainMadeIt(t *testing.T) {
	s := newStage(t)
	chain := fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
		{"type": "ptp", "mtu": 1420, "ipam": {"type": "host-local", "dataDir": %q, "subnet": "10.77.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]}},
		{"type": "tuning", "dataDir": %q, "mtu": 1400, "txQLen": 100, "sysctl": {"net.core.somaxconn": "500"}},
		{"type": "tuning", "dataDir": %[2]q, "mtu": 1300, "sysctl": {"net.core.somaxconn": "600"}}]}`, s.Path("ipam"), s.Path("tuning"))
	lo := []byte(`{"cniVersion": "1.0.0", "name": "lo", "plugins": [{"type": "loopback"}]}`)
	open := func() *cni.Runtime {
		return s.Runtime(cni.WithOwner("tester"), cni.WithBuiltinPlugins(), cni.WithConfListBytes(chain), cni.WithConfListBytes(lo))
	}
	path := s.Container("c1")
	testhost.MustSetUp(t, open(), "c1", path)

	r := open()
	expect.NoError(t, r.Check(t.Context(), "c1", path))
	testhost.WantRecover(t, r, adopted)

	// The last plugin's own configuration is still checked.
	ns := expect.Value(netns.Open(path))(t)
	expect.NoError(t, ns.Do(func() error {
		eth0, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.LinkSetTxQLen(eth0, 101)
	}))
	expect.NoError(t, ns.Close())
	if err := r.Check(t.Context(), "c1", path); err == nil {
		t.Error("CHECK does not notice another length of the queue")
	}
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
}

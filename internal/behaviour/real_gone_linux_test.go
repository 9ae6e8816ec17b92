package behaviour_test

import (
	"context"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// reserved returns the addresses that host-local has allocated in a network.
func (h *realHost) reserved(network string) []string {
	h.T.Helper()
	entries := expect.Value(os.ReadDir(h.Path("ipam", network)))(h.T)
	var addresses []string
	for _, e := range entries {
		if addr, err := netip.ParseAddr(e.Name()); err == nil {
			addresses = append(addresses, addr.String())
		}
	}
	return addresses
}

// goneCase is a network whose containers' namespaces disappear before Remove.
type goneCase struct {
	name    string
	network testhost.Case
	taken   []string // host links that disappear with an unpinned namespace
}

func goneCases() []goneCase {
	ranges := testhost.V4Range + "," + testhost.V6Range
	return []goneCase{
		{name: "bridge", network: testhost.Case{Plugins: []string{testhost.BridgeConf(`"ipMasq": true, ` + testhost.HostLocal(ranges))}}},
		{name: "bridge nftables", network: testhost.Case{Plugins: []string{
			testhost.BridgeConf(`"ipMasq": true, "ipMasqBackend": "nftables", ` + testhost.HostLocal(ranges))}}},
		{name: "ptp", network: testhost.Case{Plugins: []string{testhost.PtpConf(testhost.HostLocal(ranges))}}},
		{name: "everything", network: testhost.Everything()},
		{name: "macvlan", network: testhost.Macvlan()},
		// A software device dies with its namespace, and so does its peer. A
		// hardware device returns to the initial namespace.
		{name: "host-device", network: testhost.HostDevice(),
			taken: []string{"link up0 type veth mtu 1500 down", "link up1 type veth mtu 1500 up"}},
	}
}

// TestFault_F2_NothingStaysOfANamespaceThatIsGone before Remove: a pinned
// namespace is available to the container's plugins. Without a pin, as after a
// reboot, the plugins' leftovers are swept.
func TestFault_F2_NothingStaysOfANamespaceThatIsGone(t *testing.T) {
	for _, c := range goneCases() {
		for _, way := range []string{"path given", "no path given", "nothing keeps it"} {
			if way == "path given" && c.name != "everything" {
				continue // with a pin, the plugins get its path whatever is given
			}
			t.Run(c.name+"/"+way, func(t *testing.T) { c.remove(t, way) })
		}
	}
}

func (c *goneCase) remove(t *testing.T, way string) {
	h := newRealHost(t)
	if c.network.Prepare != nil {
		c.network.Prepare(h.RealHost)
	}
	r := h.Real(cni.WithConfListBytes(c.network.Conf("podnet", "1.0.0", h.Path("ipam"))))
	path := h.Mortal("c1")
	before := h.Audit()
	links := h.links() - len(c.taken)
	testhost.MustSetUp(t, r, "c1", path, onePort)
	expect.NoError(t, netns.Remove(path))
	var taken audit.Lines
	switch way {
	case "no path given":
		path = ""
	case "nothing keeps it":
		expect.NoError(t, netns.Remove(h.Pin("c1")))
		h.waitForLinks(links)
		taken = c.taken
	}
	for range 2 {
		expect.NoError(t, r.Remove(context.Background(), "c1", path))
	}
	left, gone := h.Left(before)
	expect.Same(t, "left", strings.Join(left, "\n"), "")
	expect.Same(t, "gone", strings.Join(h.Normalize(gone), "\n"), strings.Join(taken, "\n"))
}

// links counts the host's links that die with a container.
func (h *realHost) links() int {
	h.T.Helper()
	list := expect.Value(audit.Dump(netlink.LinkList))(h.T)
	n := 0
	for _, l := range list {
		if l.Type() == "veth" {
			n++
		}
	}
	return n
}

// waitForLinks waits until the kernel has deleted a namespace's links, which
// happens some time after the last reference is gone.
func (h *realHost) waitForLinks(want int) {
	h.T.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for tick := time.NewTicker(5 * time.Millisecond); h.links() != want; <-tick.C {
		if time.Now().After(deadline) {
			h.T.Fatalf("%d links, want %d", h.links(), want)
		}
	}
}

// TestASetupClearsWhatGoCNIHasLeft of a container that has died: only libcni's cache has
// its addresses, and the first DEL deletes them there.
func TestASetupClearsWhatGoCNIHasLeft(t *testing.T) {
	h := newRealHost(t)
	r := h.Runtime(cni.WithPluginDir(nil), cni.WithConfListBytes(dualList(h)))
	path, before := h.Container("c1"), h.Audit()
	testhost.MustSetUp(t, r, "c1", path)
	h.Unrecord("c1")
	h.inside("c1", netlink.LinkDel)
	testhost.MustSetUp(t, r, "c1", path)
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
	h.WantClean(before)
}

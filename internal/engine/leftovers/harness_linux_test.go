package leftovers

import (
	"net"
	"os"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/kernel/netfilter"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/netns"
)

func attrs(t *testing.T, name, mac string) netlink.LinkAttrs {
	t.Helper()
	hw := expect.Value(net.ParseMAC(mac))(t)
	a := netlink.NewLinkAttrs()
	a.Name, a.HardwareAddr = name, hw
	return a
}

func addVeth(t *testing.T, ns *netns.Handle, name, mac string) {
	t.Helper()
	nettest.Inside(t, ns, func(nl *netlink.Handle) error {
		return nl.LinkAdd(&netlink.Veth{LinkAttrs: attrs(t, name, mac), PeerName: name + "p"})
	})
}

func addBridge(t *testing.T, ns *netns.Handle, name, mac string) {
	t.Helper()
	nettest.Inside(t, ns, func(nl *netlink.Handle) error {
		return nl.LinkAdd(&netlink.Bridge{LinkAttrs: attrs(t, name, mac)})
	})
}

func delLink(t *testing.T, ns *netns.Handle, name string) {
	t.Helper()
	nettest.Inside(t, ns, func(nl *netlink.Handle) error {
		l, err := nl.LinkByName(name)
		if err != nil {
			return err
		}
		return nl.LinkDel(l)
	})
}

func hasLink(t *testing.T, ns *netns.Handle, name string) bool {
	t.Helper()
	return expect.Value((*links.Conns)(nil).Lookup(ns, name))(t) != nil
}

func mustFind(t *testing.T, target Target) []Item {
	t.Helper()
	return expect.Value(Find(t.Context(), target))(t)
}

// wantSwept checks that exactly these are found, in this order, and removed.
// Afterwards nothing is found, and a second removal succeeds.
func wantSwept(t *testing.T, target Target, want ...string) {
	t.Helper()
	items := mustFind(t, target)
	expect.Same(t, "found", Lines(items), want)
	for range 2 {
		expect.Succeeds(t, "remove", remove(t.Context(), items))
	}
	left := Lines(mustFind(t, target))
	expect.That(t, left == nil, "left: %q", left)
}

// targetOf returns the target of an attachment.
func targetOf(id, ifName string) Target {
	return Target{Footprint: Footprint{Owner: netfilter.Owner{Network: "podnet", ContainerID: id, IfName: ifName}}}
}

func TestMain(m *testing.M) { os.Exit(refplugins.Main(m)) }

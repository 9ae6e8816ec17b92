package sweep

import (
	"net"
	"path/filepath"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/netns"
)

// newNetNS makes a namespace that is there until the test ends.
func newNetNS(t *testing.T) *netns.Handle {
	t.Helper()
	path := filepath.Join(t.TempDir(), "netns")
	ns, err := netns.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netns.Remove(path); err != nil {
			t.Error(err)
		}
		if err := ns.Close(); err != nil {
			t.Error(err)
		}
	})
	return ns
}

// inside runs f with netlink of the namespace.
func inside(t *testing.T, ns *netns.Handle, f func(*netlink.Handle) error) {
	t.Helper()
	nl, err := netlink.NewHandleAt(vnetns.NsHandle(ns.File().Fd()), unix.NETLINK_ROUTE, unix.NETLINK_NETFILTER)
	if err != nil {
		t.Fatal(err)
	}
	defer nl.Close()
	if err := f(nl); err != nil {
		t.Fatal(err)
	}
}

func attrs(t *testing.T, name, mac string) netlink.LinkAttrs {
	t.Helper()
	hw, err := net.ParseMAC(mac)
	if err != nil {
		t.Fatal(err)
	}
	a := netlink.NewLinkAttrs()
	a.Name, a.HardwareAddr = name, hw
	return a
}

func addVeth(t *testing.T, ns *netns.Handle, name, mac string) {
	t.Helper()
	inside(t, ns, func(nl *netlink.Handle) error {
		return nl.LinkAdd(&netlink.Veth{LinkAttrs: attrs(t, name, mac), PeerName: name + "p"})
	})
}

func addBridge(t *testing.T, ns *netns.Handle, name, mac string) {
	t.Helper()
	inside(t, ns, func(nl *netlink.Handle) error {
		return nl.LinkAdd(&netlink.Bridge{LinkAttrs: attrs(t, name, mac)})
	})
}

func delLink(t *testing.T, ns *netns.Handle, name string) {
	t.Helper()
	inside(t, ns, func(nl *netlink.Handle) error {
		l, err := nl.LinkByName(name)
		if err != nil {
			return err
		}
		return nl.LinkDel(l)
	})
}

func hasLink(t *testing.T, ns *netns.Handle, name string) bool {
	t.Helper()
	s := &sockets{}
	l, err := s.lookup(t.Context(), ns, name)
	if err == nil {
		err = s.close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return l != nil
}

func mustFind(t *testing.T, target Target) []Item {
	t.Helper()
	items, err := Find(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	return items
}

// wantSwept wants these to be found, in this order, and removed; then nothing,
// and a second removal to be content.
func wantSwept(t *testing.T, target Target, want ...string) {
	t.Helper()
	items := mustFind(t, target)
	if got := lines(items); !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
	for range 2 {
		if err := Remove(t.Context(), items); err != nil {
			t.Error(err)
		}
	}
	if left := lines(mustFind(t, target)); left != nil {
		t.Errorf("left: %q", left)
	}
}

func lines(items []Item) (all []string) {
	for _, item := range items {
		all = append(all, item.String())
	}
	return all
}

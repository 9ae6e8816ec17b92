package links

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

func TestWatchHearsOfChanges(t *testing.T) {
	ns := newNS(t, "host")
	c := mustDial(t, ns)
	br := must[Link](t)(Bridge{Name: "br0"}.Create(c))
	w := must[*Listener](t)(WatchAddresses(ns))
	defer w.Close()
	wait := func(what string) { // each has a time of its own: the many addresses below may take long
		ctx, cancel := context.WithTimeout(t.Context(), expect.Patience)
		defer cancel()
		if err := w.Wait(ctx); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, change := range map[string]func() error{
		"an address": func() error { return c.AddAddress(br.Index, netip.MustParsePrefix("fd00::1/64"), 0) },
		"a link":     func() error { return c.Change(br.Index, Change{Set: unix.IFF_UP}) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		wait(what)
	}
	// More than the socket's buffer holds: the kernel reports a loss.
	for i := range 2000 {
		p := netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 1: 1, 14: byte(i >> 8), 15: byte(i)}), 64)
		if err := c.AddAddress(br.Index, p, 0); err != nil {
			t.Fatal(err)
		}
	}
	wait("many")
}

func TestWatchEndsWithTheContext(t *testing.T) {
	ns := newNS(t, "host")
	w := must[*Listener](t)(WatchAddresses(ns))
	defer w.Close()
	why := errors.New("nobody waits any more")
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error)
	go func() { done <- w.Wait(ctx) }()
	cancel(why)
	for range 2 {
		if err := <-done; !errors.Is(err, why) {
			t.Errorf("got %v", err)
		}
		go func() { done <- w.Wait(ctx) }()
	}
	<-done
	// It does not end the next one.
	c := mustDial(t, ns)
	must[Link](t)(Bridge{Name: "br0"}.Create(c))
	if err := w.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}

func addTunnel(t *testing.T, ns *netns.Handle, name string, bridge int) {
	t.Helper()
	h := must[*netlink.Handle](t)(netlink.NewHandleAt(vnetns.NsHandle(ns.File().Fd()), unix.NETLINK_ROUTE))
	defer h.Close()
	a := netlink.NewLinkAttrs()
	a.Name, a.MasterIndex = name, bridge
	if err := h.LinkAdd(&netlink.Vxlan{LinkAttrs: a, VxlanId: bridge, Port: 4789}); err != nil {
		t.Fatal(err)
	}
}

// TestDetectionTime: the kernel's attributes of an interface suffice to compute
// the duration of its detection.
func TestDetectionTime(t *testing.T) {
	ns := newNS(t, "host")
	c := mustDial(t, ns)
	br := must[Link](t)(Bridge{Name: "br0"}.Create(c))
	if got := br.DetectionTime(); got != 2*time.Second {
		t.Errorf("got %s with the kernel's settings", got)
	}
	if err := WriteSysctls(ns,
		Sysctl{Path: "net/ipv6/conf/br0/dad_transmits", Value: "3"},
		Sysctl{Path: "net/ipv6/conf/br0/router_solicitation_delay", Value: "0"},
		Sysctl{Path: "net/ipv6/neigh/br0/retrans_time_ms", Value: "500"},
	); err != nil {
		t.Fatal(err)
	}
	if got := must[Link](t)(c.Link("br0")).DetectionTime(); got != 1500*time.Millisecond {
		t.Errorf("got %s", got)
	}
}

func TestLinkLocal(t *testing.T) {
	ns := newNS(t, "host")
	c := mustDial(t, ns)
	br := must[Link](t)(Bridge{Name: "br0"}.Create(c))
	first := must[netip.Prefix](t)(c.LinkLocal(ns, br))
	if again := must[netip.Prefix](t)(c.LinkLocal(ns, br)); again != first {
		t.Errorf("got %s and then %s", first, again)
	}
	have := must[[]Address](t)(c.Addresses(br.Index))
	if len(have) != 1 || have[0].Prefix != first || have[0].Tentative {
		t.Errorf("got %v, want %s", have, first)
	}
	if got := linkLocal([6]byte{2, 0x42, 0xac, 0x11, 0, 2}).String(); got != "fe80::42:acff:fe11:2/64" {
		t.Errorf("got %s", got)
	}
	if err := WriteSysctls(ns, Sysctl{Path: "net/ipv6/conf/default/disable_ipv6", Value: "1"}); err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string]Bridge{"disabled": {Name: "br1"}, "small": {Name: "br2", MTU: 1279}} {
		if got, err := c.LinkLocal(ns, must[Link](t)(b.Create(c))); err != nil || got.IsValid() {
			t.Errorf("%s: got %s, %v", name, got, err)
		}
	}
}

func TestHasUplink(t *testing.T) {
	ns := newNS(t, "host")
	c := mustDial(t, ns)
	br := must[Link](t)(Bridge{Name: "br0"}.Create(c))
	want := func(want bool, when string) {
		t.Helper()
		if got := must[bool](t)(c.HasUplink(br.Index)); got != want {
			t.Errorf("%s: got %v", when, got)
		}
	}
	want(false, "no ports")
	container := newNS(t, "container")
	for _, name := range []string{"c1", "c2"} {
		must[Pair](t)(Veth{Name: name, Master: br.Index}.Create(c, container))
	}
	want(false, "containers")
	other := must[Link](t)(Bridge{Name: "br1"}.Create(c))
	addTunnel(t, ns, "up1", other.Index)
	want(false, "another bridge's")
	addTunnel(t, ns, "up0", br.Index)
	want(true, "a tunnel")
}

package links

import (
	"context"
	"errors"
	"net/netip"
	"testing"

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
	w := must[*Socket](t)(WatchAddresses(ns))
	defer w.Close()
	wait := func(what string) { // each has a time of its own: the many addresses below may take long
		ctx, cancel := context.WithTimeout(t.Context(), expect.Patience)
		defer cancel()
		expect.Succeeds(t, what, w.Wait(ctx))
	}
	for what, change := range map[string]func() error{
		"an address": func() error { return c.AddAddress(br.Index, netip.MustParsePrefix("fd00::1/64"), false) },
		"a link":     func() error { return c.Change(br.Index, Change{Set: unix.IFF_UP}) },
	} {
		expect.NoError(t, change())
		wait(what)
	}
	// More than the socket's buffer holds: the kernel reports a loss.
	for i := range 2000 {
		p := netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 1: 1, 14: byte(i >> 8), 15: byte(i)}), 64)
		expect.NoError(t, c.AddAddress(br.Index, p, false))
	}
	wait("many")
}

func TestWatchEndsWithTheContext(t *testing.T) {
	ns := newNS(t, "host")
	w := must[*Socket](t)(WatchAddresses(ns))
	defer w.Close()
	why := errors.New("nobody waits any more")
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error)
	go func() { done <- w.Wait(ctx) }()
	cancel(why)
	for range 2 {
		expect.Is(t, <-done, why)
		go func() { done <- w.Wait(ctx) }()
	}
	<-done
	// It does not end the next one.
	must[Link](t)(Bridge{Name: "br0"}.Create(mustDial(t, ns)))
	expect.NoError(t, w.Wait(t.Context()))
}

func addTunnel(t *testing.T, ns *netns.Handle, name string, bridge int) {
	t.Helper()
	h := must[*netlink.Handle](t)(netlink.NewHandleAt(vnetns.NsHandle(ns.File().Fd()), unix.NETLINK_ROUTE))
	defer h.Close()
	a := netlink.NewLinkAttrs()
	a.Name, a.MasterIndex = name, bridge
	expect.NoError(t, h.LinkAdd(&netlink.Vxlan{LinkAttrs: a, VxlanId: bridge, Port: 4789}))
}

func TestLinkLocal(t *testing.T) {
	ns := newNS(t, "host")
	c := mustDial(t, ns)
	br := must[Link](t)(Bridge{Name: "br0"}.Create(c))
	first := must[netip.Prefix](t)(LinkLocal(c, ns, br))
	if again := must[netip.Prefix](t)(LinkLocal(c, ns, br)); again != first {
		t.Errorf("got %s and then %s", first, again)
	}
	have := must[[]Address](t)(c.Addresses(br.Index))
	expect.That(t, len(have) == 1 && have[0].Prefix == first && !have[0].Tentative, "got %v, want %s", have, first)
	expect.Same(t, "the link-local address", linkLocal([6]byte{2, 0x42, 0xac, 0x11, 0, 2}).String(), "fe80::42:acff:fe11:2/64")
	expect.NoError(t, WriteSysctls(ns, Sysctl{Path: "net/ipv6/conf/default/disable_ipv6", Value: "1"}))
	for name, b := range map[string]Bridge{"disabled": {Name: "br1"}, "small": {Name: "br2", MTU: 1279}} {
		if got, err := LinkLocal(c, ns, must[Link](t)(b.Create(c))); err != nil || got.IsValid() {
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
		expect.Same(t, when, must[bool](t)(HasUplink(c, br.Index)), want)
	}
	want(false, "no ports")
	container := newNS(t, "container")
	for _, name := range []string{"c1", "c2"} {
		must[Pair](t)(Veth{Name: name, Master: br.Index}.Create(c, container))
	}
	want(false, "containers")
	addTunnel(t, ns, "up1", must[Link](t)(Bridge{Name: "br1"}.Create(c)).Index)
	want(false, "another bridge's")
	addTunnel(t, ns, "up0", br.Index)
	want(true, "a tunnel")
}

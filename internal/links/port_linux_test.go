package links

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAPortHasItsMode from the beginning, also where the kernel refuses to set it
// together with the rest: IPv6 is off below its smallest MTU.
func TestAPortHasItsMode(t *testing.T) {
	host, container := newNS(t, "host"), newNS(t, "container")
	h := mustDial(t, host)
	br := must[Link](t)(Bridge{Name: "br0"}.Create(h))
	for i, mode := range []PortMode{{}, {Hairpin: true}, {Isolated: true}, {Hairpin: true, Isolated: true}} {
		for _, mtu := range []int{1500, smallestMTU6 - 1} {
			name := fmt.Sprintf("eth%d-%d", i, mtu)
			pair := must[Pair](t)(Veth{Name: name, MTU: mtu, Master: br.Index, Mode: mode}.Create(h, container))
			port := must[Link](t)(h.LinkByIndex(pair.Host.Index))
			if port.Port.Master != br.Index || port.Port.PortMode != mode || port.Flags&unix.IFF_UP == 0 {
				t.Errorf("%s: got %+v, flags %#x, want %+v, up", name, port.Port, port.Flags, mode)
			}
		}
	}
}

// TestAPortNeedsABridge: a part that the kernel refuses leaves no pair.
func TestAPortNeedsABridge(t *testing.T) {
	host, container := newNS(t, "host"), newNS(t, "container")
	h, c := mustDial(t, host), mustDial(t, container)
	pair := must[Pair](t)(Veth{Name: "eth0"}.Create(h, container))
	if err := setPortUp(h, pair.Host.Index, PortMode{Hairpin: true}); err == nil || !strings.Contains(err.Error(), "set a bridge port up") {
		t.Errorf("got %v", err)
	}
	if _, err := c.Link("eth0"); !NotFound(err) {
		t.Errorf("the pair: %v", err)
	}
}

// TestUpThenSet4 does both.
func TestUpThenSet4(t *testing.T) {
	host, container := newNS(t, "host"), newNS(t, "container")
	h, c := mustDial(t, host), mustDial(t, container)
	pair := must[Pair](t)(Veth{Name: "eth0"}.Create(h, container))
	r := c.Requests()
	r.UpThenSet4(pair.Container.Index, "arp_notify", 1)
	if err := r.Send(); err != nil {
		t.Fatal(err)
	}
	l := must[Link](t)(c.Link("eth0"))
	if s := (Sysctl{Path: "net/ipv4/conf/eth0/arp_notify", Value: "1"}); l.Flags&unix.IFF_UP == 0 || !l.Has(s) {
		t.Errorf("flags %#x, arp_notify is set: %t", l.Flags, l.Has(s))
	}
}

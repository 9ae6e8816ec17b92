package links

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
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
			expect.That(t, port.Port.Master == br.Index && port.Port.PortMode == mode && port.Flags&unix.IFF_UP != 0,
				"%s: got %+v, flags %#x, want %+v, up", name, port.Port, port.Flags, mode)
		}
	}
}

// TestAPortNeedsABridge: a part that the kernel refuses leaves no pair.
func TestAPortNeedsABridge(t *testing.T) {
	host, container := newNS(t, "host"), newNS(t, "container")
	h, c := mustDial(t, host), mustDial(t, container)
	pair := must[Pair](t)(Veth{Name: "eth0"}.Create(h, container))
	expect.Says(t, "a port", setPortUp(h, pair.Host.Index, PortMode{Hairpin: true}), "set a bridge port up")
	_, err := c.Link("eth0")
	expect.That(t, NotFound(err), "the pair: %v", err)
}

// TestMacvlanOnKernelsThatLookAtTheHost makes one with a random name, and then
// renames it.
func TestMacvlanOnKernelsThatLookAtTheHost(t *testing.T) {
	host, container := newNS(t, "host"), newNS(t, "container")
	outside, inside := mustDial(t, host), mustDial(t, container)
	pair := expect.Value(Veth{Name: "eth0"}.Create(outside, container))(t)
	v := Macvlan{Name: "net1", Parent: pair.Host.Index, Mode: 4, MTU: 1400}
	expect.NoError(t, v.createAndRename(outside, container))
	got, err := inside.Link("net1")
	expect.That(t, err == nil && got.Kind == "macvlan" && got.Peer.Index == pair.Host.Index && got.MTU == 1400, "got %+v, %v", got, err)
	// A name that is taken after all leaves nothing under the random one.
	before := got.Index
	expect.Is(t, v.createAndRename(outside, container), unix.EEXIST)
	for index := before + 1; index < before+4; index++ {
		l, err := inside.LinkByIndex(index)
		expect.That(t, err != nil, "left %+v", l)
	}
	expect.Is(t, v.Create(outside, container), unix.EEXIST)
}

// TestDuty_R4_NoInterfaceIsMadeUnderANumberedName: the kernel would make br0
// from "br%d", and nobody would find it again.
func TestDuty_R4_NoInterfaceIsMadeUnderANumberedName(t *testing.T) {
	host, container := newNS(t, "host"), newNS(t, "container")
	h := mustDial(t, host)
	br := must[Link](t)(Bridge{Name: "br0"}.Create(h))
	for name, try := range map[string]func() error{
		"bridge":  func() error { _, err := Bridge{Name: "br%d"}.Create(h); return err },
		"veth":    func() error { _, err := Veth{Name: "eth%d"}.Create(h, container); return err },
		"macvlan": func() error { return Macvlan{Name: "eth%d", Parent: br.Index}.Create(h, container) },
		"move":    func() error { return h.Move(br.Index, container, Move{Name: "eth%d"}) },
	} {
		err := try()
		expect.That(t, errors.Is(err, unix.EINVAL), "%s: got %v, want EINVAL", name, err)
	}
	for _, name := range []string{"br1", "eth0"} {
		_, err := h.Link(name)
		expect.That(t, NotFound(err), "%s on the host: %v", name, err)
		_, err = mustDial(t, container).Link(name)
		expect.That(t, NotFound(err), "%s in the container: %v", name, err)
	}
}

// TestABridgeIsFull: the error says so, and nothing of the pair is left.
func TestABridgeIsFull(t *testing.T) {
	h := mustDial(t, newNS(t, "host"))
	container := newNS(t, "container")
	br := must[Link](t)(Bridge{Name: "br0"}.Create(h))
	for i := range mostPorts {
		must[Pair](t)(Veth{Name: fmt.Sprint("eth", i), Master: br.Index}.Create(h, container))
	}
	before := len(must[[]Link](t)(h.Links()))
	_, err := Veth{Name: "more", Master: br.Index}.Create(h, container)
	expect.That(t, errors.Is(err, unix.EXFULL) && strings.Contains(err.Error(), "bridge has 1023 interfaces, and the kernel takes no more"),
		"got %v", err)
	expect.Same(t, "interfaces afterwards", len(must[[]Link](t)(h.Links())), before)
}

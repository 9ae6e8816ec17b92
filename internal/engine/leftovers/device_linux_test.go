package leftovers

import (
	"net"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/nettest"
)

// nic returns a link like the kernel's description of a PCI card.
func nic(index int, name, perm, dev string) links.Link {
	l := links.Link{Index: index, Name: name, Hardware: links.Hardware{Bus: "pci", Name: dev}}
	l.MAC = net.HardwareAddr{2, 0, 0, 0, 0, byte(index)} // forged
	if hw, err := net.ParseMAC(perm); err == nil {
		l.Hardware.MAC = hw
	}
	return l
}

// below returns a link of a kind with a parent in another namespace or, if its
// number is negative, in the same one.
func below(kind string, index, parent, number int, mac string) links.Link {
	l := links.Link{Index: index, Name: "x", Type: links.Type{Kind: kind}, Peer: links.Peer{Index: parent, Elsewhere: number >= 0, NetNS: number}}
	l.MAC, _ = net.ParseMAC(mac)
	if kind == "ipvlan" {
		l.Hardware.MAC = l.MAC
	}
	return l
}

func indexOf(l *links.Link) int {
	if l == nil {
		return 0
	}
	return l.Index
}

func outside(d *Device, host int) func(links.Link) bool {
	return func(l links.Link) bool { return d.isOutside(l, host) }
}

// TestFault_F47_ADeviceIsFoundByUnforgeableAttributes: attributes that a
// container's root can forge do not count, and a similar device is not mistaken
// for it.
func TestFault_F47_ADeviceIsFoundByUnforgeableAttributes(t *testing.T) {
	const perm, dev = "3c:ec:ef:00:00:01", "0000:00:1f.6"
	card := &Device{Index: 7, Kind: "device", PermMAC: perm, Bus: "pci", Dev: dev, HostName: "eno1"}
	macvlan := &Device{Index: 7, Kind: "macvlan", Parent: 4, OnHost: true, MAC: mac}
	veth := &Device{Index: 7, Kind: "veth", Parent: 4, OnHost: true, MAC: mac, HostName: "up0"}
	const other = "0a:58:0a:01:00:03"
	ipvlan := &Device{Index: 7, Kind: "ipvlan", Parent: 4, OnHost: true, MAC: mac, PermMAC: mac} // its parent's
	for name, c := range map[string]struct {
		device             *Device
		all                []links.Link
		in, outside, onHst int
	}{
		"a card":                      {card, []links.Link{nic(7, "x", perm, dev)}, 7, 7, 7},
		"a card by another index":     {card, []links.Link{nic(7, "eth0", perm, "0000:00:1f.7"), nic(9, "y", perm, dev)}, 9, 9, 9},
		"the second port of the card": {card, []links.Link{nic(7, "eth0", "3c:ec:ef:00:00:02", dev)}, 0, 0, 0},
		"another card":                {card, []links.Link{nic(7, "eth0", "", "")}, 0, 0, 0},
		"a macvlan":                   {macvlan, []links.Link{below("macvlan", 7, 4, 0, other)}, 7, 0, 0},
		"its index is a bridge's":     {macvlan, []links.Link{below("bridge", 7, 0, -1, mac)}, 0, 0, 0},
		"on another parent":           {macvlan, []links.Link{below("macvlan", 7, 5, 0, mac)}, 0, 0, 0},
		"moved out and back":          {macvlan, []links.Link{below("macvlan", 8, 4, 0, mac)}, 8, 0, 0},
		"another program's":           {macvlan, []links.Link{below("macvlan", 8, 4, 0, other)}, 0, 0, 0},
		"elsewhere":                   {macvlan, []links.Link{below("macvlan", 9, 4, 3, mac)}, 9, 9, 0},
		"a neighbour's macvlan":       {macvlan, []links.Link{below("macvlan", 7, 4, 3, other)}, 7, 0, 0},
		"another parent by its index": {macvlan, []links.Link{below("macvlan", 9, 4, 2, mac)}, 9, 0, 0},
		"an ipvlan":                   {ipvlan, []links.Link{below("ipvlan", 8, 4, 3, mac), below("ipvlan", 7, 4, 3, mac)}, 7, 0, 0},
		"a neighbour's ipvlan":        {ipvlan, []links.Link{below("ipvlan", 8, 4, 3, mac)}, 0, 0, 0},
		"a veth":                      {veth, []links.Link{below("veth", 8, 4, 3, other)}, 8, 8, 0},
		"a veth on the host":          {veth, []links.Link{below("veth", 8, 4, -1, other)}, 0, 0, 8},
		"another veth":                {veth, []links.Link{below("veth", 7, 5, -1, mac)}, 0, 0, 0},
	} {
		expect.Same(t, name+": in the container", indexOf(find(c.all, c.device.isInside)), c.in)
		expect.Same(t, name+": elsewhere", indexOf(find(c.all, outside(c.device, 3))), c.outside)
		got := 0
		for _, l := range c.all {
			if c.device.HostName != "" && c.device.isBack(l) {
				got = l.Index
			}
		}
		expect.Same(t, name+": on the host", got, c.onHst)
		got = indexOf(find(c.all, outside(c.device, -1)))
		expect.That(t, got == 0 || c.device.Physical(), "%s: found %d where the host is not known", name, got)
	}
	expect.That(t, !card.onBus() && (&Device{PermMAC: perm}).onBus(),
		"a card that was pulled out is on its bus, or one that no bus is known of is not")
}

// An interface whose parent is in a namespace without a number, as one that is
// going, is not taken for one that leads to the host, which may have none either.
func TestLeadsToNoNamespaceWithoutANumber(t *testing.T) {
	container, host := nettest.New(t), nettest.New(t)
	conn := expect.Value(links.Dial(container))(t)
	defer conn.Close()
	const none = -1 // NETNSA_NSID_NOT_ASSIGNED
	number, err := conn.NetNS(host)
	expect.Must(t, number == none && err == nil, "the host has number %d in the container, %v", number, err)
	expect.That(t, !leadsTo(conn, links.Link{Peer: links.Peer{Index: 4, Elsewhere: true, NetNS: none}}, host), "it leads to the host")
}

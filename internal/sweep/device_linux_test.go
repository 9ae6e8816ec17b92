package sweep

import (
	"net"
	"testing"

	"github.com/vishvananda/netlink"
)

// nic is a link as a kernel describes that of a PCI card.
func nic(index int, name, perm, dev string) netlink.Link {
	a := netlink.NewLinkAttrs()
	a.Index, a.Name, a.ParentDev, a.ParentDevBus = index, name, dev, "pci"
	a.HardwareAddr = net.HardwareAddr{2, 0, 0, 0, 0, byte(index)} // forged
	if hw, err := net.ParseMAC(perm); err == nil {
		a.PermHWAddr = hw
	}
	return &netlink.Device{LinkAttrs: a}
}

// below is a link of a kind with a parent in another namespace.
func below(kind string, index, parent, nsid int, mac string) netlink.Link {
	a := netlink.NewLinkAttrs()
	a.Index, a.ParentIndex, a.NetNsID, a.Name = index, parent, nsid, "x"
	a.HardwareAddr, _ = net.ParseMAC(mac)
	return &netlink.GenericLink{LinkAttrs: a, LinkType: kind}
}

func indexOf(l netlink.Link) int {
	if l == nil {
		return 0
	}
	return l.Attrs().Index
}

// What a container's root can forge does not count, and what is like the device
// is not taken for it.
func TestFault_F47_ADeviceIsFoundByWhatCannotBeForged(t *testing.T) {
	const perm, dev = "3c:ec:ef:00:00:01", "0000:00:1f.6"
	card := &Device{Index: 7, Kind: "device", PermMAC: perm, Bus: "pci", Dev: dev, HostName: "eno1"}
	macvlan := &Device{Index: 7, Kind: "macvlan", Parent: 4, OnHost: true, MAC: mac}
	veth := &Device{Index: 7, Kind: "veth", Parent: 4, OnHost: true, MAC: mac, HostName: "up0"}
	const other = "0a:58:0a:01:00:03"
	for name, c := range map[string]struct {
		device             *Device
		all                []netlink.Link
		others             []int
		in, outside, onHst int
	}{
		"a card":                      {card, []netlink.Link{nic(7, "x", perm, dev)}, nil, 7, 7, 7},
		"a card by another index":     {card, []netlink.Link{nic(7, "eth0", perm, "0000:00:1f.7"), nic(9, "y", perm, dev)}, nil, 9, 9, 9},
		"the second port of the card": {card, []netlink.Link{nic(7, "eth0", "3c:ec:ef:00:00:02", dev)}, nil, 0, 0, 0},
		"another card":                {card, []netlink.Link{nic(7, "eth0", "", "")}, nil, 0, 0, 0},
		"a macvlan":                   {macvlan, []netlink.Link{below("macvlan", 7, 4, 0, other)}, nil, 7, 0, 0},
		"its index is a bridge's":     {macvlan, []netlink.Link{below("bridge", 7, 0, -1, mac)}, nil, 0, 0, 0},
		"on another parent":           {macvlan, []netlink.Link{below("macvlan", 7, 5, 0, mac)}, nil, 0, 0, 0},
		"moved out and back":          {macvlan, []netlink.Link{below("macvlan", 8, 4, 0, other)}, nil, 8, 0, 0},
		"a sibling":                   {macvlan, []netlink.Link{below("macvlan", 8, 4, 0, other)}, []int{8}, 0, 0, 0},
		"one of two":                  {macvlan, []netlink.Link{below("macvlan", 8, 4, 0, other), below("macvlan", 9, 4, 0, other)}, nil, 0, 0, 0},
		"elsewhere":                   {macvlan, []netlink.Link{below("macvlan", 9, 4, 3, mac)}, nil, 9, 9, 0},
		"a neighbour's macvlan":       {macvlan, []netlink.Link{below("macvlan", 7, 4, 3, other)}, nil, 7, 0, 0},
		"another parent by its index": {macvlan, []netlink.Link{below("macvlan", 9, 4, 2, mac)}, nil, 9, 0, 0},
		"a veth":                      {veth, []netlink.Link{below("veth", 8, 4, 3, other)}, nil, 8, 8, 0},
		"a veth on the host":          {veth, []netlink.Link{below("veth", 8, 4, -1, other)}, nil, 0, 0, 8},
		"another veth":                {veth, []netlink.Link{below("veth", 7, 5, -1, mac)}, nil, 0, 0, 0},
	} {
		if got := indexOf(c.device.in(c.all, c.others)); got != c.in {
			t.Errorf("%s: in the container it is %d, want %d", name, got, c.in)
		}
		if got := indexOf(c.device.outside(c.all, 3)); got != c.outside {
			t.Errorf("%s: elsewhere it is %d, want %d", name, got, c.outside)
		}
		got := 0
		for _, l := range c.all {
			if c.device.HostName != "" && c.device.isBack(l) {
				got = indexOf(l)
			}
		}
		if got != c.onHst {
			t.Errorf("%s: on the host it is %d, want %d", name, got, c.onHst)
		}
		if got := indexOf(c.device.outside(c.all, -1)); got != 0 && !c.device.physical() {
			t.Errorf("%s: found %d where the host is not known", name, got)
		}
	}
	if card.onBus() || !(&Device{PermMAC: perm}).onBus() {
		t.Error("a card that was pulled out is on its bus, or one that no bus is known of is not")
	}
}

package interchange

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
)

// damage is one change that somebody makes to the state of a matrix case.
type damage struct {
	name  string
	on    string                        // name of the case
	wreck func(a *attachment) error     // outside both namespaces
	host  func() error                  // in the host's namespace
	guest func(eth0 netlink.Link) error // in the container's namespace
	// unseen means that the reference plugins' CHECK does not notice.
	unseen bool
	// stays means that the damaged object now belongs to somebody else.
	stays bool
}

func damages() []damage {
	return slices.Concat(linkDamages(), chainDamages())
}

// linkDamages affect the plugins that attach, and their IPAM.
func linkDamages() []damage {
	all := []damage{
		{name: "interface down", on: "loopback dual", guest: func(netlink.Link) error { return setDown("lo") }},
		{name: "bridge gone", on: "bridge dual", host: func() error { return deleteLink("cni0") }},
		{name: "port taken off the bridge", on: "bridge dual", unseen: true, host: func() error { return eachLink("veth", netlink.LinkSetNoMaster) }},
		{name: "host's end down", on: "bridge dual", unseen: true, host: func() error { return eachLink("veth", netlink.LinkSetDown) }},
		{name: "hardware address changed", on: "bridge dual", guest: changeMAC},
		{name: "hardware address changed", on: "macvlan dual", guest: changeMAC},
		{name: "allocation of one family gone", on: "host-local dual", wreck: forget("10.77.0.2"), unseen: true},
		{name: "allocation gone", on: "host-local v6", wreck: forget("fd77::2")},
		{name: "allocation another's", on: "host-local v4", wreck: reassign("10.77.0.2"), stays: true},
	}
	for _, on := range []string{"bridge", "ptp", "macvlan", "host-device"} {
		all = append(all,
			damage{name: "interface gone", on: on + " v4", guest: netlink.LinkDel},
			damage{name: "interface down", on: on + " dual", guest: netlink.LinkSetDown, unseen: true},
			damage{name: "IPv4 address gone", on: on + " dual", guest: deleteAddress("10.77.0.2")},
			damage{name: "IPv6 address gone", on: on + " dual", guest: deleteAddress("fd77::2")},
			damage{name: "IPv4 default route gone", on: on + " dual", guest: deleteDefault(netlink.FAMILY_V4)},
			damage{name: "IPv6 default route gone", on: on + " dual", guest: deleteDefault(netlink.FAMILY_V6)},
			damage{name: "allocation gone", on: on + " v4", wreck: forget("10.77.0.2")},
			damage{name: "allocation of one family gone", on: on + " dual", wreck: forget("fd77::2"), unseen: true},
		)
	}
	return all
}

// chainDamages affect the plugins tuning and bandwidth.
func chainDamages() []damage {
	return []damage{
		{name: "MTU changed", on: "tuning v4", guest: func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1300) }},
		{name: "hardware address changed", on: "tuning v4", guest: changeMAC},
		{name: "promiscuous mode off", on: "tuning v4", guest: netlink.SetPromiscOff},
		{name: "allmulti off", on: "tuning v4", guest: netlink.LinkSetAllmulticastOff},
		{name: "queue length changed", on: "tuning v4", guest: func(l netlink.Link) error { return netlink.LinkSetTxQLen(l, 100) }},
		{name: "sysctl of the interface changed", on: "tuning v4", guest: func(netlink.Link) error {
			return os.WriteFile("/proc/sys/net/ipv4/conf/eth0/arp_filter", []byte("0"), 0)
		}},
		{name: "sysctl of the namespace changed", on: "tuning v4", guest: func(netlink.Link) error {
			return os.WriteFile("/proc/sys/net/core/somaxconn", []byte("400"), 0)
		}},
		{name: "limit of the one direction gone", on: "bandwidth v4", host: func() error { return eachLink("veth", deleteRootQdisc) }, unseen: true},
		{name: "limit of the other direction gone", on: "bandwidth v4", host: func() error { return eachLink("bwp", deleteRootQdisc) }, unseen: true},
		{name: "limiting device gone", on: "bandwidth v4", host: func() error { return eachLink("bwp", netlink.LinkDel) }},
	}
}

// TestCheckDetectsDamage attaches with one side's plugins and damages one
// thing. The other side's CHECK must fail, and its DEL must leave nothing
// behind.
func TestCheckDetectsDamage(t *testing.T) {
	wantOutsideAsBefore(t)
	plugintest.UseIPTables(t, "nft")
	all := map[string]*network{}
	for _, c := range cases() {
		all[c.name] = &c.network
	}
	for _, dmg := range damages() {
		n := all[dmg.on]
		if n == nil {
			t.Fatalf("the matrix has no case %q", dmg.on)
		}
		for _, d := range directions() {
			if dmg.unseen && d.deleter.name == "theirs" {
				continue
			}
			t.Run(dmg.on+"/"+dmg.name+"/"+d.name(), func(t *testing.T) {
				t.Parallel()
				dmg.live(t, n, d)
			})
		}
	}
}

func (dmg *damage) live(t *testing.T, n *network, d direction) {
	h := n.newHost(t)
	a := h.attachment(n, "c1")
	before := a.audit()
	if _, err := a.add(d.adder); err != nil {
		t.Fatalf("ADD: %v", err)
	}
	dmg.do(t, a)
	expect.Fails(t, "CHECK does not notice", a.check(d.deleter))
	if err := a.del(d.deleter); err != nil {
		if !slices.ContainsFunc(n.types(t), d.deleter.ours) {
			return // errors of the reference plugins are their own choice
		}
		t.Fatalf("DEL after the damage: %v", err)
	}
	left, _ := audit.Diff(before, a.audit())
	if left = left.Without(shared); len(left) > 0 != dmg.stays {
		t.Errorf("DEL after the damage left:\n%s", strings.Join(left, "\n"))
	}
}

func (dmg *damage) do(t *testing.T, a *attachment) {
	t.Helper()
	if dmg.wreck != nil {
		expect.NoError(t, dmg.wreck(a))
	}
	if dmg.host != nil {
		a.h.do(dmg.host)
	}
	if dmg.guest != nil {
		a.c.do(a.h, func() error {
			name := a.rt.IfName
			if slices.Contains(a.n.types(t), "loopback") {
				name = "lo"
			}
			link, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			return dmg.guest(link)
		})
	}
}

func setDown(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetDown(link)
}

func deleteLink(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkDel(link)
}

// eachLink calls fn for the links with the prefix. There must be one.
func eachLink(prefix string, fn func(netlink.Link) error) error {
	links, err := audit.Dump(netlink.LinkList)
	if err != nil {
		return err
	}
	found := false
	for _, l := range links {
		if strings.HasPrefix(l.Attrs().Name, prefix) {
			found = true
			if err := fn(l); err != nil {
				return fmt.Errorf("%s: %w", l.Attrs().Name, err)
			}
		}
	}
	if !found {
		return fmt.Errorf("no link %s*", prefix)
	}
	return nil
}

func changeMAC(l netlink.Link) error {
	return netlink.LinkSetHardwareAddr(l, net.HardwareAddr{2, 0, 0, 0, 0, 9})
}

func deleteAddress(ip string) func(netlink.Link) error {
	return func(l netlink.Link) error {
		addrs, err := audit.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(l, netlink.FAMILY_ALL) })
		if err != nil {
			return err
		}
		for _, a := range addrs {
			if a.IP.Equal(net.ParseIP(ip)) {
				return netlink.AddrDel(l, &a)
			}
		}
		return fmt.Errorf("%s has no address %s", l.Attrs().Name, ip)
	}
}

func deleteDefault(family int) func(netlink.Link) error {
	return func(l netlink.Link) error {
		routes, err := audit.Dump(func() ([]netlink.Route, error) { return netlink.RouteList(l, family) })
		if err != nil {
			return err
		}
		for _, r := range routes {
			if r.Dst == nil || r.Dst.IP.IsUnspecified() {
				return netlink.RouteDel(&r)
			}
		}
		return fmt.Errorf("no default route in %v", routes)
	}
}

func deleteRootQdisc(l netlink.Link) error {
	qdiscs, err := netlink.QdiscList(l)
	if err != nil {
		return err
	}
	for _, q := range qdiscs {
		if q.Attrs().Parent == netlink.HANDLE_ROOT {
			return netlink.QdiscDel(q)
		}
	}
	return fmt.Errorf("no root qdisc in %v", qdiscs)
}

func forget(ip string) func(*attachment) error {
	return func(a *attachment) error { return os.Remove(a.allocation(ip)) }
}

func reassign(ip string) func(*attachment) error {
	return func(a *attachment) error { return os.WriteFile(a.allocation(ip), []byte("another\r\neth0"), 0o600) }
}

// allocation returns the path of host-local's file for an address.
func (a *attachment) allocation(ip string) string {
	return filepath.Join(a.h.path("state", "ipam"), networkName, ip)
}

func tool(name string, args ...string) func() error {
	return func() error {
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
		}
		return nil
	}
}

package damage

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/kernel/firewalld"
	"github.com/embedcni/cni/internal/nettest"
)

// damage is something that breaks a container, by mistake or by another program.
type damage struct {
	name   string
	to     func(f form) bool
	do     func(s *scene) error // on the host
	inside bool                 // it is in the container, so that a repair must be asked for
	shared bool                 // it breaks the other container as well
	// mend is for a damage that Repair must not, or cannot, undo in this form: it is
	// reported, and an administrator mends it, after which Repair does the rest.
	mend func(s *scene) error
	left func(f form) bool
	// others puts back the part of others, which nobody repairs; nil: there is none.
	others func(s *scene) error
}

// damages returns those to a form. A policy or a zone matters to rules only, and to the
// bridge that rules name.
func damages(f form) []damage {
	all := slices.Concat(bridgeDamages(), ruleDamages(), formDamages(), policyDamages(), zoneDamages())
	if f.policy == "" && !f.zoned {
		all = slices.Concat(all, ptpDamages(), queueDamages(), reservationDamages(), insideDamages())
	}
	return slices.DeleteFunc(all, func(d damage) bool { return !d.to(f) })
}

func bridgeDamages() []damage {
	all := []damage{
		{name: "port taken off the bridge", do: func(s *scene) error { return nettest.OnLink(s.one.end, netlink.LinkSetNoMaster) }},
		{name: "host's end down", do: func(s *scene) error { return nettest.OnLink(s.one.end, netlink.LinkSetDown) }},
		// Its IPv6 address goes with the state.
		{name: "bridge down", shared: true, do: func(*scene) error { return nettest.OnLink("cni0", netlink.LinkSetDown) }},
		{name: "bridge deleted", shared: true, do: func(*scene) error { return nettest.OnLink("cni0", netlink.LinkDel) },
			others: func(s *scene) error { return s.plug("vm0") }},
		{name: "bridge's routes flushed", shared: true, do: func(*scene) error {
			return errors.Join(tool("ip", "route", "flush", "dev", "cni0"), tool("ip", "-6", "route", "flush", "dev", "cni0"))
		}},
		{name: "bridge's IPv4 address deleted", shared: true, do: func(*scene) error { return deleteAddress("cni0", "10.77.0.1") }},
		{name: "bridge's IPv6 address deleted", shared: true, do: func(*scene) error { return deleteAddress("cni0", "fd77::1") }},
	}
	for i := range all {
		all[i].to = form.bridged
	}
	return all
}

func ptpDamages() []damage {
	all := []damage{
		{name: "host's end down", do: func(s *scene) error { return nettest.OnLink(s.one.end, netlink.LinkSetDown) }},
		{name: "host's IPv4 route deleted", do: func(s *scene) error { return deleteRoute(s.one.end, s.one.v4) }},
		{name: "host's IPv6 route deleted", do: func(s *scene) error { return deleteRoute(s.one.end, s.one.v6) }},
		{name: "host's IPv4 address deleted", do: func(s *scene) error { return deleteAddress(s.one.end, "10.77.0.1") }},
		{name: "host's IPv6 address deleted", do: func(s *scene) error { return deleteAddress(s.one.end, "fd77::1") }},
		{name: "host's routes flushed", do: func(s *scene) error {
			return errors.Join(tool("ip", "route", "flush", "dev", s.one.end), tool("ip", "-6", "route", "flush", "dev", s.one.end))
		}},
	}
	for i := range all {
		all[i].to = form.routed
	}
	return all
}

// ruleDamages are to all rules at once.
func ruleDamages() []damage {
	return []damage{
		{name: "ruleset flushed", shared: true, to: func(f form) bool { return f.paired() && !f.legacy && !f.zoned }, do: func(*scene) error {
			return tool("nft", "flush", "ruleset")
		}},
		{name: "tables of iptables flushed", shared: true, to: func(f form) bool { return f.paired() && f.tables() }, do: func(*scene) error {
			var errs []error
			for _, family := range []string{"iptables", "ip6tables"} {
				errs = append(errs, tool(family, "-t", "nat", "-F"), tool(family, "-t", "nat", "-X"), tool(family, "-F"), tool(family, "-X"))
			}
			return errors.Join(errs...)
		}},
	}
}

// formDamages are to single rules of this module's form, in which those of executables are
// once they were repaired. Each rule of the executables' forms is a test of the plugins.
func formDamages() []damage {
	chain := func(args ...string) func(*scene) error {
		return func(*scene) error { return errors.Join(tool("iptables", args...), tool("ip6tables", args...)) }
	}
	accepted := func(f form) bool { return f.paired() && f.native() && !f.zoned && f.policy == "" }
	sets := func(f form) bool { return f.paired() && f.native() }
	all := []damage{
		{name: "jump to the accepting rules deleted", to: accepted, do: chain("-F", "FORWARD")},
		{name: "accepting rules deleted", to: accepted, do: chain("-F", "CNI-FORWARD")},

		{name: "table deleted", to: form.paired, do: nft("delete table inet embedcni")},
		{name: "masqueraded containers deleted", to: sets, do: nft("flush set inet embedcni containers4; flush set inet embedcni containers6")},
		{name: "ports deleted", to: sets, do: nft("flush map inet embedcni hostports4; flush map inet embedcni hostports6")},
		{name: "subnets deleted", to: sets, do: nft("flush set inet embedcni subnets4_24; flush set inet embedcni subnets6_64")},
		{name: "jump to the ports deleted", to: sets, do: nft("flush chain inet embedcni prerouting")},
		{name: "jump to the masquerading deleted", to: sets, do: nft("flush chain inet embedcni postrouting")},
		{name: "spoofing allowed", to: form.bridged, do: nft("add table bridge nat; delete table bridge nat; add table bridge embedcni; delete table bridge embedcni")},
	}
	for i := range all {
		all[i].shared = true
	}
	return all
}

// policyDamages are to the policies against packets from other bridges.
func policyDamages() []damage {
	sets := func(f form) bool { return f.policy != "" && f.native() }
	all := []damage{
		{name: "policies deleted", to: sets, do: func(s *scene) error {
			return tool("nft", "flush set inet embedcni "+map[string]string{"isolated": "isolated", "same-bridge": "same_bridge"}[s.policy])
		}},
		{name: "bridges with policies deleted", to: sets, do: nft("flush set inet embedcni bridges")},
		{name: "rules of the policies deleted", to: sets, do: nft("flush chain inet embedcni forward")},
	}
	for i := range all {
		all[i].shared = true
	}
	return all
}

// zoneDamages are to the zone of firewalld in which the containers' packets are accepted.
func zoneDamages() []damage {
	source := func(ip string) string { return firewalld.Source(netip.MustParseAddr(ip)) }
	forget := func(s *scene) { s.zones.RemoveSource(firewalld.DefaultZone, source(s.one.v4)) }
	zoned := func(f form) bool { return f.zoned }
	always := func(form) bool { return true }
	return []damage{
		{name: "IPv4 address forgotten by its zone", to: zoned, do: func(s *scene) error { forget(s); return nil }},
		{name: "all addresses forgotten by a reload", to: zoned, shared: true, others: (*scene).useZones,
			do: func(s *scene) error { s.zones.Reload(); return nil }},
		{name: "IPv4 address in another zone", to: zoned, left: always, do: func(s *scene) error {
			forget(s)
			s.zones.AddSource("drop", source(s.one.v4))
			return nil
		}, mend: func(s *scene) error { s.zones.RemoveSource("drop", source(s.one.v4)); return nil }},
	}
}

// reservationDamages are to host-local's files.
func reservationDamages() []damage {
	reserved := func(f form) bool { return f.typ != "loopback" }
	file := func(s *scene, ip string) string { return s.Path("ipam", "podnet", ip) }
	return []damage{
		{name: "IPv4 reservation deleted", to: reserved, do: func(s *scene) error { return os.Remove(file(s, s.one.v4)) }},
		{name: "IPv6 reservation deleted", to: reserved, do: func(s *scene) error { return os.Remove(file(s, s.one.v6)) }},
		{name: "all reservations deleted", to: reserved, shared: true, do: func(s *scene) error {
			var errs []error
			for _, g := range []*guest{s.one, s.other} {
				if g != nil {
					errs = append(errs, os.Remove(file(s, g.v4)), os.Remove(file(s, g.v6)))
				}
			}
			return errors.Join(errs...)
		}},
		// Somebody else was given the address: nobody takes it from him.
		{name: "IPv4 address reserved for another", to: reserved, left: func(form) bool { return true },
			do:   func(s *scene) error { return os.WriteFile(file(s, s.one.v4), []byte("another\r\neth0"), 0o600) },
			mend: func(s *scene) error { return os.Remove(file(s, s.one.v4)) }},
	}
}

func queueDamages() []damage {
	all := []damage{
		{name: "limit of the host's end deleted", do: func(s *scene) error { return nettest.OnLink(s.one.end, deleteRootQdisc) }},
		{name: "redirection to the limiting device deleted", do: func(s *scene) error { return nettest.OnLink(s.one.end, deleteIngress) }},
		{name: "limiting device deleted", do: func(s *scene) error { return nettest.OnLink(s.shaper(), netlink.LinkDel) }},
		{name: "limit of the limiting device deleted", do: func(s *scene) error { return nettest.OnLink(s.shaper(), deleteRootQdisc) }},
		{name: "limiting device down", do: func(s *scene) error { return nettest.OnLink(s.shaper(), netlink.LinkSetDown) }},
	}
	for i := range all {
		all[i].to = form.paired
	}
	return all
}

// insideDamages are to the container's namespace.
func insideDamages() []damage {
	within := func(do func(s *scene) error) func(s *scene) error {
		return func(s *scene) error { return s.At(s.one.path, func() error { return do(s) }) }
	}
	eth0 := func(f form) bool { return f.typ != "loopback" }
	all := []damage{
		{name: "lo down", to: func(f form) bool { return f.typ == "loopback" }, do: within(func(*scene) error { return nettest.OnLink("lo", netlink.LinkSetDown) })},
		{name: "interface down", to: eth0, do: within(func(*scene) error { return nettest.OnLink("eth0", netlink.LinkSetDown) })},
		{name: "IPv4 address deleted", to: eth0, do: within(func(s *scene) error { return deleteAddress("eth0", s.one.v4) })},
		{name: "IPv6 address deleted", to: eth0, do: within(func(s *scene) error { return deleteAddress("eth0", s.one.v6) })},
		{name: "IPv4 default route deleted", to: eth0, do: within(func(*scene) error { return tool("ip", "route", "del", "default") })},
		{name: "IPv6 default route deleted", to: eth0, do: within(func(*scene) error { return tool("ip", "-6", "route", "del", "default") })},
		{name: "routes flushed", to: eth0, do: within(func(*scene) error {
			return errors.Join(tool("ip", "route", "flush", "dev", "eth0"), tool("ip", "-6", "route", "flush", "dev", "eth0"))
		})},
		{name: "MTU changed", to: form.paired, do: within(func(*scene) error {
			return nettest.OnLink("eth0", func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1300) })
		})},
		{name: "sysctl changed", to: form.paired, do: within(func(*scene) error { return writeSysctl("net/ipv4/conf/eth0/arp_filter", "0") })},
	}
	for i := range all {
		all[i].inside = true
	}
	return all
}

// shaper returns the name of the container's limiting device: the host's end redirects
// to it.
func (s *scene) shaper() string {
	link, err := netlink.LinkByName(s.one.end)
	if err != nil {
		return err.Error()
	}
	filters, err := netlink.FilterList(link, netlink.MakeHandle(0xffff, 0))
	if err != nil {
		return err.Error()
	}
	for _, f := range filters {
		u, ok := f.(*netlink.U32)
		if !ok {
			continue
		}
		for _, action := range u.Actions {
			if m, ok := action.(*netlink.MirredAction); ok {
				if device, err := netlink.LinkByIndex(m.Ifindex); err == nil {
					return device.Attrs().Name
				}
			}
		}
	}
	return "none in " + fmt.Sprint(filters)
}

func deleteAddress(name, ip string) error {
	return nettest.OnLink(name, func(l netlink.Link) error {
		addresses, err := audit.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(l, netlink.FAMILY_ALL) })
		if err != nil {
			return err
		}
		i := slices.IndexFunc(addresses, func(a netlink.Addr) bool { return a.IP.Equal(net.ParseIP(ip)) })
		if i < 0 {
			return fmt.Errorf("%s has no address %s", name, ip)
		}
		return netlink.AddrDel(l, &addresses[i])
	})
}

func deleteRoute(name, ip string) error {
	family := "-4"
	if strings.Contains(ip, ":") {
		family = "-6"
	}
	return tool("ip", family, "route", "del", ip, "dev", name)
}

func deleteRootQdisc(l netlink.Link) error { return deleteQdisc(l, netlink.HANDLE_ROOT) }
func deleteIngress(l netlink.Link) error   { return deleteQdisc(l, netlink.HANDLE_INGRESS) }

func deleteQdisc(l netlink.Link, parent uint32) error {
	qdiscs, err := netlink.QdiscList(l)
	if err != nil {
		return err
	}
	for _, q := range qdiscs {
		if q.Attrs().Parent == parent {
			return netlink.QdiscDel(q)
		}
	}
	return fmt.Errorf("no such qdisc in %v", qdiscs)
}

// nft runs commands of nft in one transaction.
func nft(commands string) func(*scene) error {
	return func(*scene) error { return tool("nft", commands) }
}

func tool(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

func readSysctl(name string) (string, error) {
	data, err := os.ReadFile(filepath.Join("/proc/sys", name))
	return strings.TrimSpace(string(data)), err
}

func writeSysctl(name, value string) error {
	return os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0)
}

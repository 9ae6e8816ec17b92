package faults_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/netns"
)

// flush deletes every rule of the host.
func (h *host) flush() {
	h.t.Helper()
	for _, args := range [][]string{{"nft", "flush", "ruleset"}, {"iptables", "-t", "nat", "-F"}, {"iptables", "-F"}} {
		out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
		expect.Must(h.t, err == nil, "%v: %v: %s", args, err, out)
	}
}

func (l *living) flushed() {
	l.attach("c1", "c2", "c3")
	l.flush()
	l.photographAll()
	l.restart(l.set)
	l.collect(l.set, "c1", "c2", "c3")
}

func (l *living) sniffed() {
	l.edit(`{"type": "firewall"`, `{"type": "tuning"}, {"type": "firewall"`)
	l.attach("c1", "c2")
	onHost := expect.Value(nettest.Sniff("br0"))(l.t)
	var inside io.Closer
	expect.NoError(l.t, l.homes[0].ns.Do(func() (err error) { inside, err = nettest.Sniff("eth0"); return err }))
	l.healthy("c1", "c2")
	l.restart(l.set)
	expect.NoError(l.t, onHost.Close(), inside.Close())
}

// healthy checks that CHECK finds nothing wrong. The executable bridge is not asked: it
// mistakes the counter of sniffers for the setting, and expects that a bridge keeps the
// hardware address of the day of ADD.
func (l *living) healthy(ids ...string) {
	l.t.Helper()
	if l.kind == executables || l.kind == ourIPTables { // a named iptables is the executables' work
		return
	}
	r := l.runtime(l.set)
	for _, id := range ids {
		l.ok("check "+id, r.Check(context.Background(), id, l.netns(id)))
	}
}

func (l *living) tuned() {
	l.edit(`{"type": "firewall"`, `{"type": "tuning", "mtu": 1400}, {"type": "firewall"`)
	l.attach("c1", "c2")
	expect.NoError(l.t, os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"), 0o644))
	l.photographAll()
	l.restart(l.set)
	expect.NoError(l.t, os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644))
}

// uplinked: the bridge exists already, and its hardware address follows its
// ports.
func (l *living) uplinked() {
	expect.NoError(l.t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: nettest.Attrs("br0")}))
	br := expect.Value(netlink.LinkByName("br0"))(l.t)
	expect.NoError(l.t, netlink.AddrAdd(br, expect.Value(netlink.ParseAddr("10.70.0.1/16"))(l.t)))
	l.base = l.audit()
	l.edit(`"isGateway": true, "isDefaultGateway": true, `, ``) // an address would fix its hardware address
	l.attach("c1", "c2")
	br = expect.Value(netlink.LinkByName("br0"))(l.t)
	uplink := l.cable("uplink")
	expect.NoError(l.t, netlink.LinkSetHardwareAddr(uplink, []byte{2, 0, 0, 0, 0, 1})) // lower than any that veth makes
	expect.NoError(l.t, netlink.LinkSetMaster(uplink, br))
	if now, err := netlink.LinkByName("br0"); err != nil || bytes.Equal(now.Attrs().HardwareAddr, br.Attrs().HardwareAddr) {
		l.t.Fatalf("the bridge keeps %v, %v", br.Attrs().HardwareAddr, err)
	}
	l.photographAll()
	l.healthy("c1", "c2")
	l.restart(l.set)
	expect.NoError(l.t, netlink.LinkDel(uplink))
}

// cable gives the host an interface that is up, with another at its end.
func (h *host) cable(name string) netlink.Link {
	h.t.Helper()
	cable := &netlink.Veth{LinkAttrs: nettest.Attrs(name), PeerName: name + "-end"}
	expect.NoError(h.t, netlink.LinkAdd(cable))
	for _, end := range []string{name, name + "-end"} {
		expect.NoError(h.t, nettest.OnLink(end, netlink.LinkSetUp))
	}
	return cable
}

// hidden: a program restarted in its own mount namespace cannot see them.
func (l *living) hidden() {
	l.attach("c1", "c2")
	for _, home := range l.homes {
		home.inhabit()
		pins := expect.Value(filepath.Glob(l.path("state", "embedcni", "attachments", "netns", "*")))(l.t)
		for _, path := range append(pins, home.path) {
			if ns, err := netns.Open(path); err == nil {
				expect.NoError(l.t, errors.Join(ns.Close(), nettest.Unpin(path)))
			}
		}
	}
	l.photographAll()
	l.restart(l.set)
	l.collect(l.set, "c1", "c2")
}

// ordinary: another user with the two capabilities attaches and removes a
// container beside a running one.
func (l *living) ordinary() {
	l.edit(`{"type": "firewall", "backend": "iptables"},`, ``)
	l.set.PluginDirs = nil
	for dir := l.dir; len(dir) > len(os.TempDir()); dir = filepath.Dir(dir) {
		expect.NoError(l.t, os.Chmod(dir, 0o755)) // t.TempDir reserves it for root
	}
	for _, dir := range []string{"state", "ipam"} {
		expect.NoError(l.t, os.MkdirAll(l.path(dir), 0o755))
		expect.NoError(l.t, os.Chown(l.path(dir), ordinary, ordinary))
	}
	as := func(j job) {
		l.t.Helper()
		j.Settings = l.set
		killed, said := beginAs(l.t, j, asOrdinary(unix.CAP_NET_ADMIN, unix.CAP_SYS_ADMIN)).wait()
		if killed || said != "" {
			l.say("%s %s as an ordinary user: %s", j.Verb, j.ID, said)
		}
	}
	for i, id := range []string{"c1", "dead"} {
		before := l.audit()
		as(job{Verb: "ADD", ID: id, NetNS: l.container(id), Port: int32(20000 + i)})
		if id == "c1" {
			result := expect.Value(l.runtime(l.set).Lookup(id))(l.t)
			l.settle(id, l.netns(id), result).host = l.about(before)
		}
	}
	as(job{Verb: "RESTART"})
	as(job{Verb: "DEL", ID: "dead"})
	as(job{Verb: "GC", Keep: []string{"c1"}})
	if inside := l.inside("dead"); len(inside) > 0 {
		l.say("%s", fmt.Sprint(inside))
	}
}

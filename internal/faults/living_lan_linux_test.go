package faults_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/firewalldtest"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/netns"
)

// twoMachines on one LAN give their containers the same address.
func (l *living) twoMachines() {
	lan := plugintest.NewLAN(l.t)
	machine := func(name string, device string) (settings, *netns.Handle) {
		host, path := plugintest.NetNS(l.t)
		for _, nic := range []string{"lan0", "nic0"} {
			lan.Cable(l.t, host, nic)
			nettest.SetUp(l.t, host, nic)
		}
		s := l.set
		s.StateDir, s.HostNetNS, s.Owner = l.path(name), path, name
		s.Confs = [][]byte{fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "lan", "plugins": [{%s,
			"ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "fd00::/64", "rangeStart": "fd00::2", "rangeEnd": "fd00::2"}]]}}]}`, device, l.path("ipam-"+name))}
		return s, host
	}
	const macvlan, lent = `"type": "macvlan", "master": "lan0"`, `"type": "host-device", "device": "nic0"`
	devices := []string{macvlan, lent}
	first, _ := machine("first", devices[l.random.IntN(2)])
	path := l.asking("c1")
	result := expect.Value(l.runtime(first).Setup(context.Background(), "c1", path))(l.t)
	home := l.settle("c1", path, nil)
	home.connect(lan.Machine, addressOf(result, "eth0"))
	home.photograph()
	for n, device := range devices {
		second, _ := machine(fmt.Sprint("second", n), device)
		id := fmt.Sprint("dead", n)
		path := l.asking(id)
		for range 2 {
			if _, err := l.runtime(second).Setup(context.Background(), id, path); err == nil || !strings.Contains(err.Error(), "another machine") {
				l.say("the second machine's Setup by %s: %v", device, err)
			}
			home.look()
		}
	}
	l.leave(home, first)
}

// asking makes a container with duplicate address detection.
func (l *living) asking(id string) (path string) {
	l.t.Helper()
	path = l.netns(id)
	ns, err := netns.Create(path)
	expect.NoError(l.t, errors.Join(err, ns.Close()))
	return path
}

// connect opens a connection between the LAN's own machine and the container.
func (h *home) connect(machine *netns.Handle, address string) {
	t := h.l.t
	t.Helper()
	target := net.JoinHostPort(address, "80")
	var err error
	expect.NoError(t, h.ns.Do(func() error {
		h.server, err = net.Listen("tcp6", target)
		return err
	}))
	go answer(h.server)
	expect.NoError(t, machine.Do(func() error {
		h.flow, err = net.DialTimeout("tcp6", target, answerWait)
		return err
	}))
	h.also = func() (lines []string) {
		for what, works := range map[string]func() error{
			"the connection": func() error { return echo(h.flow) },
			"another":        func() error { return machine.Do(func() error { return dial("tcp6", target) }) },
		} {
			if err := works(); err != nil {
				t.Logf("container %s is not reached by %s: %v", h.id, what, err)
				continue
			}
			lines = append(lines, "reached from the LAN by "+what)
		}
		return lines
	}
	seen := h.also()
	expect.Must(t, len(seen) == 2, "container %s: %v", h.id, seen)
}

// zoned: firewalld only knows addresses, and another container may have the
// same one.
func (l *living) zoned() {
	here := expect.Value(netns.Current())(l.t)
	defer here.Close()
	server := firewalldtest.Start(l.t, here)
	l.set.Bus = server.Address
	l.edit(`{"type": "firewall", "backend": "iptables"}`, `{"type": "firewall"}`)
	setup := func(s settings, id string, port int32) *cni.Result {
		l.t.Helper()
		expect.NoError(l.t, elsewhere(l.t, job{Verb: "ADD", ID: id, NetNS: l.container(id), Port: port, Settings: s}))
		return expect.Value(l.runtime(s).Lookup(id))(l.t)
	}
	trusted := func(address string) bool {
		for _, source := range server.Sources("trusted") {
			if source == address+"/32" {
				return true
			}
		}
		return false
	}
	for n := range 2 {
		before, id, port := l.audit(), fmt.Sprint("c", n), int32(10000+n)
		home := l.settle(id, l.netns(id), setup(l.set, id, port))
		home.port, home.host = port, l.about(before)
		home.also = func() (lines []string) {
			if trusted(home.address) {
				lines = append(lines, "trusted "+home.address)
			}
			return lines
		}
		home.photograph()
		if !trusted(home.address) {
			l.say("%s is not in the zone", id)
		}
	}
	same := l.set
	same.Confs = [][]byte{fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "same", "plugins": [{"type": "bridge", "bridge": "br9",
		"ipam": {"type": "static", "addresses": [{"address": "%s/16"}]}}, {"type": "firewall"}]}`, l.homes[0].address)}
	for n, s := range []settings{same, l.set, same} {
		id := fmt.Sprint("dead", n)
		dead := addressOf(setup(s, id, 0), "eth0")
		if !trusted(dead) {
			l.say("%s is not in the zone", id)
		}
		if n == 2 {
			expect.NoError(l.t, netns.Remove(l.netns(id)))
		}
		l.restart(l.set)
		l.remove(s, id, "")
		if n == 1 && trusted(dead) {
			l.say("%s is in the zone yet", dead)
		}
		for _, home := range l.homes {
			home.look()
		}
	}
	l.collect(l.set, "c0", "c1")
	for _, home := range l.homes {
		l.leave(home, l.set)
	}
	if left := server.Sources("trusted"); len(left) > 0 {
		l.say("left in the zone: %v", left)
	}
	expect.NoError(l.t, nettest.OnLink("br9", netlink.LinkDel))
	server.StopFirewalld() // and its table
}

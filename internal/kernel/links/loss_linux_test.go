package links

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/netns"
)

// watched is a namespace whose losses a test watches.
type watched struct {
	*Losses
	t     *testing.T
	ns    *netns.Handle
	c     *Conn
	marks int
}

// watch begins to watch once the script has run in a new namespace.
func watch(t *testing.T, links, routes bool, buffer int, script string) *watched {
	t.Helper()
	ns := newNS(t, "host")
	nettest.Shell(t, ns, script)
	l := must[*Losses](t)(WatchLosses(ns, links, routes, buffer))
	t.Cleanup(func() { expect.NoError(t, l.Close()) })
	return &watched{l, t, ns, mustDial(t, ns), 0}
}

// hears runs a script, and reports whether something is lost by all that is announced.
func (w *watched) hears(script string) (lost bool) {
	w.t.Helper()
	nettest.Shell(w.t, w.ns, script)
	return w.heard()
}

// heard adds an interface, and listens until that is announced.
func (w *watched) heard() (lost bool) {
	w.t.Helper()
	w.marks++
	mark := must[Link](w.t)(Bridge{Name: fmt.Sprintf("mark%d", w.marks)}.Create(w.c))
	ctx, cancel := context.WithTimeout(w.t.Context(), expect.Patience)
	defer cancel()
	added := false
	for w.ports[mark.Index].Index == 0 {
		gone, more, err := w.Next(ctx)
		lost, added = lost || gone, added || more
		expect.NoError(w.t, err)
	}
	expect.That(w.t, added || lost, "%s is not reported", mark.Name)
	return lost
}

// TestLossesAreHeard, of all kinds, and no additions.
func TestLossesAreHeard(t *testing.T) {
	const tbf = "root tbf rate 1mbit burst 100k latency 25ms"
	for name, tt := range map[string]struct {
		begin string
		steps []string // "lost: " and what is one, or what is none
	}{
		"interfaces": {"ip link add br0 type bridge; ip link add veth0 type veth peer name veth1; ip link set veth0 master br0 up; ip link set br0 up", []string{
			"ip link add veth2 type veth peer name veth3; ip link set veth2 master br0; ip link set veth2 up; ip link set veth3 up",
			"ip link set veth1 up", // the other end's carrier
			"lost: ip link set veth0 nomaster",
			"ip link set veth0 master br0",
			"lost: ip link set br0 down",
			"ip link set br0 up",
			"lost: ip link set veth0 down",
			"lost: ip link set veth0 name veth9",
			"ip link set veth9 up; ip link set veth9 alias a; ip link set veth9 mtu 1400",
			"lost: ip link del veth9",
			"lost: ip link del br0",
		}},
		"ports": {"ip link add br0 type bridge; ip link add veth0 type veth peer name veth1; ip link set veth0 master br0", []string{
			"bridge link set dev veth0 hairpin on isolated on",
			"lost: bridge link set dev veth0 hairpin off",
			`unshare -m sh -ec "mount -t sysfs sysfs /sys; echo 1 >/sys/class/net/veth0/brport/hairpin_mode"`,
			`lost: unshare -m sh -ec "mount -t sysfs sysfs /sys; echo 0 >/sys/class/net/veth0/brport/hairpin_mode"`,
			"lost: bridge link set dev veth0 isolated off",
			"bridge link set dev veth0 learning off",
		}},
		"addresses": {"ip link add br0 type bridge; ip link set br0 up", []string{
			"ip addr add 10.1.0.1/24 dev br0; ip addr add fd01::1/64 dev br0 nodad",
			"lost: ip addr del fd01::1/64 dev br0",
			"lost: ip addr del 10.1.0.1/24 dev br0",
		}},
		"routes": {"ip link add br0 type bridge; ip addr add 10.1.0.1/24 dev br0; ip addr add fd01::1/64 dev br0 nodad; ip link set br0 up", []string{
			"ip route add 10.1.9.9/32 dev br0; ip route add fd09::9/128 dev br0",
			"lost: ip route del 10.1.9.9/32",
			"lost: ip -6 route del fd09::9/128",
		}},
		"queues": {"ip link add br0 type bridge; ip link add veth0 type veth peer name veth1; ip link set veth0 up; ip link set veth1 up", []string{
			"tc qdisc add dev veth0 " + tbf,
			"lost: tc qdisc del dev veth0 root",
			"tc qdisc add dev veth0 root pfifo; tc qdisc del dev veth0 root", // no plugin's
			"tc qdisc add dev veth0 " + tbf,
			"lost: tc qdisc replace dev veth0 root pfifo",
			"tc qdisc add dev veth0 ingress; tc filter add dev veth0 parent ffff: protocol all u32 match u32 0 0 action mirred egress redirect dev br0",
			"lost: tc filter del dev veth0 parent ffff:",
			"lost: tc qdisc del dev veth0 ingress",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := watch(t, true, true, 0, tt.begin)
			for _, step := range tt.steps {
				script, lost := strings.CutPrefix(step, "lost: ")
				expect.Same(t, script+": lost", w.hears(script), lost)
			}
		})
	}
}

// TestLossesOfOtherKindsAreNotHeard.
func TestLossesOfOtherKindsAreNotHeard(t *testing.T) {
	for _, links := range []bool{true, false} {
		w := watch(t, links, !links, 0, "ip link add br0 type bridge; ip addr add 10.1.0.1/24 dev br0; ip link set br0 up; ip route add 10.1.9.9/32 dev br0; tc qdisc add dev br0 root tbf rate 1mbit burst 100k latency 25ms")
		expect.Same(t, "a route", w.hears("ip route del 10.1.9.9/32"), !links)
		expect.Same(t, "a queue", w.hears("tc qdisc del dev br0 root"), links)
		// Its routes go with it.
		expect.Same(t, "an address", w.hears("ip route flush dev br0; ip addr del 10.1.0.1/24 dev br0"), true)
		expect.Same(t, "an interface", w.hears("ip link del br0"), true)
	}
}

// TestLostVLANs: a port has lost one of those that a plugin may have given to it. It is
// announced with the others, under the type of whichever request has taken them away.
func TestLostVLANs(t *testing.T) {
	const index, bridge = 7, 3
	access, begin, end := uint16(vlanAccess), uint16(nl.BRIDGE_VLAN_INFO_RANGE_BEGIN), uint16(nl.BRIDGE_VLAN_INFO_RANGE_END)
	standard := [2]uint16{access, 1}
	has := [][2]uint16{standard, {begin, 100}, {end, 199}, {0, 300}}
	for what, tt := range map[string]struct {
		before, now [][2]uint16
		lost        bool
	}{
		"none":                    {has, has, false},
		"one more":                {has, append(slices.Clone(has), [2]uint16{0, 301}), false},
		"one":                     {has, has[:3], true},
		"one of a range":          {has, [][2]uint16{standard, {begin, 100}, {end, 198}, {0, 300}}, true},
		"the bridge's own":        {has, has[1:], false},
		"its own":                 {[][2]uint16{{access, 7}}, nil, true},
		"its own, still a member": {[][2]uint16{{access, 7}}, [][2]uint16{{0, 7}}, true},
		"all":                     {has, nil, true},
	} {
		for _, typ := range []uint16{unix.RTM_NEWLINK, unix.RTM_SETLINK, unix.RTM_DELLINK} {
			w := &Losses{ports: map[int]port{
				bridge: {Link: Link{Index: bridge, Type: Type{DefaultVLAN: 1}}}, index: {Link: Link{Index: index, Port: Port{Master: bridge}}},
			}}
			for _, step := range []struct {
				vlans [][2]uint16
				lost  bool
			}{{tt.before, false}, {tt.now, tt.lost}, {tt.now, false}, {tt.before, hasLostVLAN(vlansOf(t, tt.now), vlansOf(t, tt.before), 1)}} {
				lost, added, err := w.take(Message{Header: syscall.NlMsghdr{Type: typ}, Data: vlanMessage(unix.AF_BRIDGE, index, step.vlans)})
				expect.That(t, err == nil && !added && lost == step.lost, "%s, type %d: lost %v, added %v, %v", what, typ, lost, added, err)
			}
		}
	}
	// Another bridge has given it others.
	w := &Losses{ports: map[int]port{index: {Link: Link{Index: index}, vlans: VLANs{{5, 5, false}}}}}
	for _, family := range []uint8{unix.AF_BRIDGE, unix.AF_INET6} {
		lost, added, err := w.take(Message{Header: syscall.NlMsghdr{Type: unix.RTM_NEWLINK}, Data: vlanMessage(family, index, nil)})
		expect.That(t, !lost && !added && err == nil, "no port, family %d: lost %v, added %v, %v", family, lost, added, err)
	}
}

func vlansOf(t *testing.T, all [][2]uint16) VLANs {
	t.Helper()
	return parsePort(parse(unix.RTM_NEWLINK, vlanMessage(unix.AF_BRIDGE, 1, all))).VLANs
}

// TestLossesThatAreTruncated: an announcement that is cut off is an error.
func TestLossesThatAreTruncated(t *testing.T) {
	whole := vlanMessage(unix.AF_BRIDGE, 7, [][2]uint16{{vlanAccess, 7}},
		nest(unix.IFLA_PROTINFO|unix.NLA_F_NESTED, data(unix.IFLA_BRPORT_STATE, 3), data(unix.IFLA_BRPORT_MODE, 1)))
	filter := body(request(unix.RTM_DELTFILTER, 0, tcmsg(-1, filtersIngress), str(nl.TCA_KIND, "u32")))
	for _, m := range []Message{
		{Header: syscall.NlMsghdr{Type: unix.RTM_NEWLINK}, Data: whole[:unix.SizeofIfInfomsg-1]},
		{Header: syscall.NlMsghdr{Type: unix.RTM_NEWLINK}, Data: whole[:unix.SizeofIfInfomsg+5]},
		{Header: syscall.NlMsghdr{Type: unix.RTM_NEWLINK}, Data: whole[:len(whole)-6]},
		{Header: syscall.NlMsghdr{Type: unix.RTM_DELTFILTER}},
		{Header: syscall.NlMsghdr{Type: unix.RTM_DELTFILTER}, Data: filter[:nl.SizeofTcMsg-1]},
		{Header: syscall.NlMsghdr{Type: unix.RTM_DELTFILTER}, Data: filter[:nl.SizeofTcMsg+5]},
	} {
		w := &Losses{ports: map[int]port{7: {Link: Link{Index: 7, Port: Port{Master: 3}}}}}
		_, _, err := w.take(m)
		expect.That(t, errors.Is(err, errTruncated), "type %d, %d bytes: %v", m.Header.Type, len(m.Data), err)
	}
	w := &Losses{}
	lost, _, err := w.take(Message{Header: syscall.NlMsghdr{Type: unix.RTM_DELTFILTER}, Data: filter})
	expect.That(t, lost && err == nil, "a filter: lost %v, %v", lost, err)
}

// TestLossesThatWereNotAnnounced: more announcements than the buffer holds count as a loss,
// and later ones are compared with what is there by then.
func TestLossesThatWereNotAnnounced(t *testing.T) {
	const flips = 300
	begin := "ip link add br0 type bridge; ip link add br1 type bridge; ip link set br1 up"
	for _, buffer := range []int{1, 8 << 20} {
		w := watch(t, true, true, buffer, begin)
		index := must[Link](t)(w.c.Link("br0")).Index
		for range flips {
			expect.NoError(t, w.c.Change(index, Change{MTU: 1400}), w.c.Change(index, Change{MTU: 1500})) // no loss
		}
		nettest.Shell(t, w.ns, "ip link add veth0 type veth peer name veth1; ip link set veth0 up")
		lost, _, err := w.Next(t.Context())
		expect.That(t, err == nil && lost == (buffer == 1), "a buffer of %d: lost %v, %v", buffer, lost, err)
		if !lost {
			expect.Same(t, "the rest: lost", w.heard(), false)
		}
		expect.Same(t, "the last interface", w.ports[must[Link](t)(w.c.Link("veth0")).Index].Name, "veth0")
		expect.Same(t, "the last interface is set down", w.hears("ip link set veth0 down"), true)
	}
}

// TestLossesAreTheKernels: a process with privileges can send to the group.
func TestLossesAreTheKernels(t *testing.T) {
	w := watch(t, true, true, 0, "")
	forged := request(unix.RTM_DELLINK, 0, ifinfo(4711, 0, 0)).Serialize()
	expect.NoError(t, unix.Sendto(mustDial(t, w.ns).fd, forged, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups(unix.RTNLGRP_LINK)}))
	expect.Same(t, "lost", w.heard(), false)
}

func TestLossesEndWithTheContext(t *testing.T) {
	w := watch(t, true, true, 0, "")
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error)
	go func() {
		_, _, err := w.Next(ctx)
		done <- err
	}()
	cancel(why)
	expect.Is(t, <-done, why)
}

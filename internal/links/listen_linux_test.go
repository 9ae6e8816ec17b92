package links

import (
	"context"
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/netns"
)

// everything hears of all kinds.
var everything = Changes{Links: true, Addresses: true, Routes: true, Queues: true}

// hears returns what the listener hears until done returns true of it.
func hears(t *testing.T, l *Listener, done func(Announcement) bool) (all []Announcement, lost bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), expect.Patience)
	defer cancel()
	for end := false; !end; {
		dropped, err := l.Next(ctx, func(h Announcement) {
			all = append(all, h)
			end = end || done(h)
		})
		if lost = lost || dropped; err != nil {
			t.Fatalf("%v; heard %+v", err, all)
		}
	}
	return all, lost
}

func isGone(name string) func(Announcement) bool {
	return func(h Announcement) bool { return h.Gone && h.Link != nil && h.Link.Name == name }
}

// lost reports whether it is an address or a route that is gone.
func lost(h Announcement) bool { return h == Announcement{Gone: true} }

// TestListenHearsWhatIsLost, but not of what is new.
func TestListenHearsWhatIsLost(t *testing.T) {
	ns, other := newNS(t, "host"), newNS(t, "container")
	c := mustDial(t, ns)
	br := must[Link](t)(Bridge{Name: "br0"}.Create(c))
	pair := must[Pair](t)(Veth{Name: "eth0", Master: br.Index}.Create(c, other))
	nettest.Shell(t, ns, "ip link set "+pair.Host.Name+" down name veth0; ip link set br0 up; ip addr add 10.1.0.1/24 dev br0; ip addr add fd01::1/64 dev br0 nodad; ip route add 10.1.9.9/32 dev br0; ip route add fd09::9/128 dev br0")
	l := must[*Listener](t)(Listen(ns, everything))
	defer l.Close()
	for _, step := range []struct {
		script string
		want   func(Announcement) bool
	}{
		{"ip link set veth0 nomaster", func(h Announcement) bool {
			return h.Link != nil && !h.Gone && h.Link.Name == "veth0" && h.Link.Port.Master == 0
		}},
		{"ip addr del fd01::1/64 dev br0", lost},
		{"ip link set br0 down", func(h Announcement) bool { return h.Link != nil && !h.Gone && h.Link.Name == "br0" && !h.Link.Up() }},
		{"ip link set br0 up", func(h Announcement) bool { return h.Link != nil && !h.Gone && h.Link.Index == br.Index && h.Link.Up() }},
		{"ip addr del 10.1.0.1/24 dev br0", lost},
		{"ip addr add 10.2.0.1/24 dev br0; ip route replace 10.1.9.9/32 dev br0; ip route flush 10.1.9.9/32", lost},
		{"ip -6 route replace fd09::8/128 dev br0; ip -6 route flush fd09::8/128", lost},
	} {
		nettest.Shell(t, ns, step.script)
		hears(t, l, step.want)
	}
	// A port that leaves its bridge is not a deleted interface.
	nettest.Shell(t, ns, "ip link set veth0 master br0; ip link set veth0 nomaster; ip link del veth0")
	all, _ := hears(t, l, isGone("veth0"))
	expect.Same(t, "deletions of one interface", len(slices.DeleteFunc(all, func(h Announcement) bool { return !isGone("veth0")(h) })), 1)
	nettest.Shell(t, ns, "ip link del br0")
	hears(t, l, isGone("br0"))
}

// TestListenHearsOfQueues: a queue that is deleted or replaced is announced, and so is a
// filter. What goes with its interface is not.
func TestListenHearsOfQueues(t *testing.T) {
	ns := newNS(t, "host")
	c := mustDial(t, ns)
	must[Link](t)(Bridge{Name: "br0"}.Create(c))
	nettest.Shell(t, ns, "ip link add veth0 type veth peer name veth1; ip link set veth0 up; ip link set veth1 up")
	l := must[*Listener](t)(Listen(ns, everything))
	defer l.Close()
	queue := func(kind string, filter, gone bool) func(Announcement) bool {
		return func(h Announcement) bool {
			return h.Gone == gone && h.Queue != nil && *h.Queue == HeardQueue{kind, filter}
		}
	}
	for _, step := range []struct {
		script string
		want   func(Announcement) bool
	}{
		{"tc qdisc add dev veth0 root tbf rate 1mbit burst 100k latency 25ms", queue("tbf", false, false)},
		{"tc qdisc del dev veth0 root", queue("tbf", false, true)},
		{"tc qdisc add dev veth0 root tbf rate 1mbit burst 100k latency 25ms; tc qdisc replace dev veth0 root pfifo", queue("tbf", false, true)},
		{"tc qdisc add dev veth0 ingress; tc filter add dev veth0 parent ffff: protocol all u32 match u32 0 0 action mirred egress redirect dev br0", queue("u32", true, false)},
		{"tc filter del dev veth0 parent ffff:", queue("u32", true, true)},
		{"tc qdisc del dev veth0 ingress", queue("ingress", false, true)},
	} {
		nettest.Shell(t, ns, step.script)
		hears(t, l, step.want)
	}
	nettest.Shell(t, ns, "tc qdisc add dev veth0 root tbf rate 1mbit burst 100k latency 25ms; ip link del veth0; ip link del br0")
	hears(t, l, isGone("br0"))
}

// TestHeardQueueIsRead: an announcement that is cut off is an error.
func TestHeardQueueIsRead(t *testing.T) {
	read := func(body []byte) (h Announcement, err error) {
		h, _, err = readAnnouncement(Message{Header: syscall.NlMsghdr{Type: unix.RTM_DELTFILTER}, Data: body})
		return h, err
	}
	whole := body(request(unix.RTM_DELTFILTER, 0, tcmsg(-1, filtersIngress), str(nl.TCA_KIND, "u32")))
	h, err := read(whole)
	if err != nil || !h.Gone || *h.Queue != (HeardQueue{"u32", true}) {
		t.Errorf("%+v, %v", h.Queue, err)
	}
	for _, b := range [][]byte{nil, whole[:nl.SizeofTcMsg-1], whole[:nl.SizeofTcMsg+5]} {
		if _, err := read(b); !errors.Is(err, errTruncated) {
			t.Errorf("%d bytes: %v", len(b), err)
		}
	}
}

// TestListenHearsOfBridgePorts: a change of a port's modes is announced with all that the
// port has.
func TestListenHearsOfBridgePorts(t *testing.T) {
	ns := newNS(t, "host")
	c := mustDial(t, ns)
	br := must[Link](t)(Bridge{Name: "br0"}.Create(c))
	nettest.Shell(t, ns, "ip link add veth0 type veth peer name veth1; ip link set veth0 master br0")
	veth := must[Link](t)(c.Link("veth0"))
	l := must[*Listener](t)(Listen(ns, everything))
	defer l.Close()
	port := func(mode PortMode) func(Announcement) bool {
		return func(h Announcement) bool {
			return h.BridgePort != nil && h.BridgePort.Interface == veth.Index && h.BridgePort.Mode != nil && *h.BridgePort.Mode == mode
		}
	}
	for _, step := range []struct {
		script string
		want   PortMode
	}{
		{"bridge link set dev veth0 hairpin on isolated on", PortMode{Hairpin: true, Isolated: true}},
		{"bridge link set dev veth0 hairpin off", PortMode{Isolated: true}},
		{`unshare -m sh -ec "mount -t sysfs sysfs /sys; echo 1 >/sys/class/net/veth0/brport/hairpin_mode"`, PortMode{Hairpin: true, Isolated: true}},
		{"bridge link set dev veth0 isolated off", PortMode{Hairpin: true}},
	} {
		nettest.Shell(t, ns, step.script)
		hears(t, l, port(step.want))
	}
	nettest.Shell(t, ns, "ip link set veth0 nomaster; ip link del veth0; ip link del br0")
	all, _ := hears(t, l, isGone("br0"))
	for _, h := range all {
		if h.BridgePort != nil && (h.Gone || h.BridgePort.Interface == br.Index) {
			t.Errorf("a port that leaves: %+v", h)
		}
	}
}

// TestHeardPortIsRead: a port that has lost VLANs is announced with the others, under the
// type of whichever request has taken them away.
func TestHeardPortIsRead(t *testing.T) {
	read := func(typ uint16, body []byte) (h Announcement, ok bool, err error) {
		return readAnnouncement(Message{Header: syscall.NlMsghdr{Type: typ}, Data: body})
	}
	whole := vlanMessage(unix.AF_BRIDGE, 7, [][2]uint16{{vlanAccess, 7}, {nl.BRIDGE_VLAN_INFO_RANGE_BEGIN, 100}, {nl.BRIDGE_VLAN_INFO_RANGE_END, 199}})
	for _, typ := range []uint16{unix.RTM_NEWLINK, unix.RTM_SETLINK, unix.RTM_DELLINK} {
		h, ok, err := read(typ, whole)
		want := HeardPort{Interface: 7, VLANs: VLANs{{7, 7, true}, {100, 199, false}}}
		if err != nil || !ok || h.Gone || h.Link != nil || !reflect.DeepEqual(*h.BridgePort, want) {
			t.Errorf("type %d: %+v, %v, %v", typ, h.BridgePort, ok, err)
		}
	}
	hairpin := vlanMessage(unix.AF_BRIDGE, 7, nil, nest(unix.IFLA_PROTINFO|unix.NLA_F_NESTED,
		data(unix.IFLA_BRPORT_STATE, 3), data(unix.IFLA_BRPORT_MODE, 1), data(unix.IFLA_BRPORT_ISOLATED, 0)))
	h, ok, err := read(unix.RTM_NEWLINK, hairpin)
	if err != nil || !ok || !reflect.DeepEqual(*h.BridgePort, HeardPort{Interface: 7, Mode: &PortMode{Hairpin: true}}) {
		t.Errorf("in hairpin mode: %+v, %v, %v", h.BridgePort, ok, err)
	}
	if h, ok, err := read(unix.RTM_NEWLINK, vlanMessage(unix.AF_INET6, 7, nil)); ok || err != nil {
		t.Errorf("about IPv6: %+v, %v", h, err)
	}
	for _, b := range [][]byte{whole[:unix.SizeofIfInfomsg-1], whole[:unix.SizeofIfInfomsg+5], whole[:len(whole)-3], hairpin[:len(hairpin)-6]} {
		if _, _, err := read(unix.RTM_NEWLINK, b); !errors.Is(err, errTruncated) {
			t.Errorf("%d bytes: %v", len(b), err)
		}
	}
}

// TestListenSaysWhatItLost: more announcements than the buffer holds.
func TestListenSaysWhatItLost(t *testing.T) {
	ns := newNS(t, "host")
	c := mustDial(t, ns)
	br := must[Link](t)(Bridge{Name: "br0"}.Create(c))
	small := everything
	small.Buffer = 1
	l := must[*Listener](t)(Listen(ns, small))
	defer l.Close()
	large := everything
	large.Buffer = 8 << 20
	whole := must[*Listener](t)(Listen(ns, large))
	defer whole.Close()
	const flips = 300
	for range flips {
		expect.NoError(t, errors.Join(c.Change(br.Index, Change{Set: unix.IFF_UP}), c.Change(br.Index, Change{Clear: unix.IFF_UP})))
	}
	expect.NoError(t, c.Change(br.Index, Change{Name: "last"}))
	isLast := func(h Announcement) bool { return h.Link != nil && h.Link.Name == "last" }
	if all, lost := hears(t, whole, isLast); lost || len(all) < 2*flips {
		t.Errorf("a large buffer: heard %d, lost %v", len(all), lost)
	}
	lost, err := l.Next(t.Context(), func(Announcement) {})
	if err != nil || !lost {
		t.Errorf("a small buffer: lost %v, %v", lost, err)
	}
	// It hears on.
	expect.NoError(t, c.Delete(br.Index))
	hears(t, l, isGone("last"))
}

// TestListenBelievesTheKernelOnly: a process with privileges can send to the group.
func TestListenBelievesTheKernelOnly(t *testing.T) {
	ns := newNS(t, "host")
	c, forger := mustDial(t, ns), mustDial(t, ns)
	l := must[*Listener](t)(Listen(ns, everything))
	defer l.Close()
	forged := request(unix.RTM_DELLINK, 0, ifinfo(4711, 0, 0)).Serialize()
	expect.NoError(t, unix.Sendto(forger.fd, forged, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: bit32(unix.RTNLGRP_LINK)}))
	must[Link](t)(Bridge{Name: "br0"}.Create(c))
	all, _ := hears(t, l, func(h Announcement) bool { return h.Link != nil && h.Link.Name == "br0" })
	for _, h := range all {
		if h.Link != nil && h.Link.Index == 4711 {
			t.Error("heard a message that another process sent")
		}
	}
}

func TestListenEndsWithTheContext(t *testing.T) {
	l := must[*Listener](t)(Listen(newNS(t, "host"), everything))
	defer l.Close()
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error)
	go func() {
		_, err := l.Next(ctx, func(Announcement) {})
		done <- err
	}()
	cancel(why)
	expect.Is(t, <-done, why)
}

// TestListenChoosesGroups: a listener for links hears of no address.
func TestListenChoosesGroups(t *testing.T) {
	ns := newNS(t, "host")
	c := mustDial(t, ns)
	br := must[Link](t)(Bridge{Name: "br0"}.Create(c))
	l := must[*Listener](t)(Listen(ns, Changes{Links: true}))
	defer l.Close()
	expect.NoError(t, errors.Join(c.AddAddress(br.Index, netip.MustParsePrefix("10.1.0.1/24"), false), c.Delete(br.Index)))
	all, _ := hears(t, l, isGone("br0"))
	for _, h := range all {
		if h.Link == nil {
			t.Errorf("heard %+v", h)
		}
	}
}

func TestWatchHearsOfChanges(t *testing.T) {
	ns := newNS(t, "host")
	c := mustDial(t, ns)
	br := must[Link](t)(Bridge{Name: "br0"}.Create(c))
	w := must[*Listener](t)(WatchAddresses(ns))
	defer w.Close()
	wait := func(what string) { // each has a time of its own: the many addresses below may take long
		ctx, cancel := context.WithTimeout(t.Context(), expect.Patience)
		defer cancel()
		if err := w.Wait(ctx); err != nil {
			t.Errorf("%s: %v", what, err)
		}
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
	w := must[*Listener](t)(WatchAddresses(ns))
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
	c := mustDial(t, ns)
	must[Link](t)(Bridge{Name: "br0"}.Create(c))
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

// TestDetectionTime: the kernel's attributes of an interface suffice to compute
// the duration of its detection.
func TestDetectionTime(t *testing.T) {
	ns := newNS(t, "host")
	c := mustDial(t, ns)
	br := must[Link](t)(Bridge{Name: "br0"}.Create(c))
	expect.Same(t, "with the kernel's settings", br.DetectionTime(), 2*time.Second)
	expect.NoError(t, WriteSysctls(ns,
		Sysctl{Path: "net/ipv6/conf/br0/dad_transmits", Value: "3"},
		Sysctl{Path: "net/ipv6/conf/br0/router_solicitation_delay", Value: "0"},
		Sysctl{Path: "net/ipv6/neigh/br0/retrans_time_ms", Value: "500"},
	))
	expect.Same(t, "detection time", must[Link](t)(c.Link("br0")).DetectionTime(), 1500*time.Millisecond)
}

func TestLinkLocal(t *testing.T) {
	ns := newNS(t, "host")
	c := mustDial(t, ns)
	br := must[Link](t)(Bridge{Name: "br0"}.Create(c))
	first := must[netip.Prefix](t)(c.LinkLocal(ns, br))
	if again := must[netip.Prefix](t)(c.LinkLocal(ns, br)); again != first {
		t.Errorf("got %s and then %s", first, again)
	}
	have := must[[]Address](t)(c.Addresses(br.Index))
	if len(have) != 1 || have[0].Prefix != first || have[0].Tentative {
		t.Errorf("got %v, want %s", have, first)
	}
	expect.Same(t, "the link-local address", linkLocal([6]byte{2, 0x42, 0xac, 0x11, 0, 2}).String(), "fe80::42:acff:fe11:2/64")
	expect.NoError(t, WriteSysctls(ns, Sysctl{Path: "net/ipv6/conf/default/disable_ipv6", Value: "1"}))
	for name, b := range map[string]Bridge{"disabled": {Name: "br1"}, "small": {Name: "br2", MTU: 1279}} {
		if got, err := c.LinkLocal(ns, must[Link](t)(b.Create(c))); err != nil || got.IsValid() {
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
		expect.Same(t, when, must[bool](t)(c.HasUplink(br.Index)), want)
	}
	want(false, "no ports")
	container := newNS(t, "container")
	for _, name := range []string{"c1", "c2"} {
		must[Pair](t)(Veth{Name: name, Master: br.Index}.Create(c, container))
	}
	want(false, "containers")
	other := must[Link](t)(Bridge{Name: "br1"}.Create(c))
	addTunnel(t, ns, "up1", other.Index)
	want(false, "another bridge's")
	addTunnel(t, ns, "up0", br.Index)
	want(true, "a tunnel")
}

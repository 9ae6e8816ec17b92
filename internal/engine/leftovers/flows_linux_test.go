package leftovers

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/netns"
)

// flow is a conntrack entry from a client to a port of the host, translated to
// a container's.
type flow struct {
	proto     uint8
	host, dst string // destination of requests; source of answers
}

const client, hostAddr = "192.0.2.9", "192.0.2.1"

func (f flow) String() string { return fmt.Sprintf("%d %s %s", f.proto, f.host, f.dst) }

func (f flow) entry(port uint16) (netlink.InetFamily, *netlink.ConntrackFlow) {
	from, family := client, netlink.InetFamily(unix.AF_INET)
	if netip.MustParseAddr(f.dst).Is6() {
		from, family = "2001:db8::9", unix.AF_INET6
	}
	entry := &netlink.ConntrackFlow{FamilyType: uint8(family), TimeOut: 600}
	entry.Forward = netlink.IPTuple{
		Protocol: f.proto, SrcIP: raw(from), SrcPort: port, DstIP: raw(f.host), DstPort: 8080,
	}
	entry.Reverse = netlink.IPTuple{
		Protocol: f.proto, SrcIP: raw(f.dst), SrcPort: 80, DstIP: raw(from), DstPort: port,
	}
	if f.proto == unix.IPPROTO_TCP {
		entry.ProtoInfo = &netlink.ProtoInfoTCP{State: nfEstablished}
	}
	return family, entry
}

// raw returns the address in its wire length.
func raw(addr string) net.IP { return netip.MustParseAddr(addr).AsSlice() }

// nfEstablished is TCP_CONNTRACK_ESTABLISHED of linux/netfilter/nf_conntrack_tcp.h.
const nfEstablished = 3

func track(t *testing.T, host *netns.Handle, flows []flow) {
	t.Helper()
	nettest.Inside(t, host, func(nl *netlink.Handle) error {
		for i, f := range flows {
			family, entry := f.entry(uint16(40000 + i))
			if err := nl.ConntrackCreate(netlink.ConntrackTable, family, entry); err != nil {
				return fmt.Errorf("flow %v: %w", f, err)
			}
		}
		return nil
	})
}

func tracked(t *testing.T, host *netns.Handle) (all []string) {
	t.Helper()
	nettest.Inside(t, host, func(nl *netlink.Handle) error {
		for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
			entries, err := nl.ConntrackTableList(netlink.ConntrackTable, family)
			if err != nil {
				return err
			}
			for _, e := range entries {
				all = append(all, flow{e.Forward.Protocol, e.Forward.DstIP.String(), e.Reverse.SrcIP.String()}.String())
			}
		}
		return nil
	})
	slices.Sort(all)
	return all
}

func TestFault_F28_UDPToTheContainerIsForgotten(t *testing.T) {
	const udp, tcp = unix.IPPROTO_UDP, unix.IPPROTO_TCP
	host, other := nettest.New(t), nettest.New(t)
	mine := []flow{
		{udp, hostAddr, "10.1.0.2"}, {udp, "10.1.0.2", "10.1.0.2"}, // to the host's port, and to the address itself
		{udp, "2001:db8::1", "fd00::2"},
	}
	others := []flow{
		{udp, hostAddr, "10.1.0.20"}, {udp, hostAddr, "10.1.0.3"}, {udp, "10.1.0.2", "10.1.0.3"},
		{tcp, hostAddr, "10.1.0.2"}, {udp, "2001:db8::1", "fd00::20"},
	}
	track(t, host, append(mine, others...))
	track(t, other, mine)
	var want, elsewhere []string
	for _, f := range others {
		want = append(want, f.String())
	}
	for _, f := range mine {
		elsewhere = append(elsewhere, f.String())
	}
	slices.Sort(want)
	slices.Sort(elsewhere)
	for _, n := range []uint{3, 0} {
		expect.Same(t, "flushed", expect.Value(flush(flowing(host, nil, "10.1.0.2", "fd00::2")))(t), n)
		expect.Same(t, "tracked", tracked(t, host), want)
	}
	expect.Same(t, "on another host", tracked(t, other), elsewhere)
}

// flowing returns a target with forwarded UDP ports.
func flowing(host *netns.Handle, others *Others, list ...string) Target {
	t := targetOf("c1", "eth0")
	t.Host, t.Footprint.Addresses, t.Others, t.Footprint.Rules.UDP = host, addrs(list...), others, true
	return t
}

func flush(t Target) (uint, error) { return t.flushFlows() }

// using are the records of others, which use addresses.
type using func() (string, error)

func (u using) Each(found func(record.Found) bool) error {
	addr, err := u()
	found(record.Found{Record: &record.Record{ContainerID: "c2", Attachments: []record.Attachment{
		{IfName: "eth0", Result: json.RawMessage(`{"cniVersion": "1.0.0", "ips": [{"address": "` + addr + `/24"}]}`)},
	}}})
	return err
}

// TestFault_F28_FlowsOfTheAddressesPresentOwnerStay: the address's present owner is
// only searched if there are flows, because that reads every record. The
// owner's flows stay.
func TestFault_F28_FlowsOfTheAddressesPresentOwnerStay(t *testing.T) {
	host, times := nettest.New(t), 0
	inUse := &Others{ContainerID: "c1", Records: using(func() (string, error) { times++; return "10.1.0.2", nil })}
	track(t, host, []flow{{unix.IPPROTO_UDP, hostAddr, "10.1.0.2"}, {unix.IPPROTO_UDP, hostAddr, "10.1.0.3"}})
	for _, c := range []struct {
		addr  string
		times int
	}{{"10.1.0.9", 0}, {"10.1.0.2", 1}, {"10.1.0.3", 2}} {
		_, err := flush(flowing(host, inUse, c.addr))
		expect.That(t, err == nil && times == c.times, "flush of %s: %v, asked %d times, want %d", c.addr, err, times, c.times)
	}
	want := []string{flow{unix.IPPROTO_UDP, hostAddr, "10.1.0.2"}.String()}
	got := tracked(t, host)
	expect.That(t, slices.Equal(got, want), "tracked are %q, want %q", got, want)
	broken := errors.New("broken")
	_, err := flush(flowing(host, &Others{Records: using(func() (string, error) { return "", broken })}, "10.1.0.2"))
	got = tracked(t, host)
	expect.That(t, errors.Is(err, broken) && slices.Equal(got, want), "%v, tracked are %q: their owners are unknown", err, got)
}

package links

import (
	"errors"
	"net"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/sandbox"
)

func TestMain(m *testing.M) { os.Exit(sandbox.Main(m)) }

// Flows of neither a port nor an address would be all of the host's.
func TestForgetRefusesAllFlows(t *testing.T) {
	n, err := Forget(nettest.New(t), false, Flows{Port: 53}, Flows{})
	expect.That(t, err != nil, "forgot %d flows of any port and address", n)
}

// TestUntranslatedFlows: a flow that a rule has sent to a container stays, while one to
// the host itself goes.
func TestUntranslatedFlows(t *testing.T) {
	host, container := net.IPv4(192, 0, 2, 1), net.IPv4(10, 1, 0, 2)
	for answers, want := range map[string]bool{host.String(): true, container.String(): false} {
		f := &filter{untranslated: true}
		expect.NoError(t, errors.Join(f.AddProtocol(unix.IPPROTO_UDP), f.AddPort(netlink.ConntrackOrigDstPort, 53)))
		flow := &netlink.ConntrackFlow{
			Forward: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, DstIP: host, DstPort: 53},
			Reverse: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: net.ParseIP(answers), SrcPort: 53},
		}
		expect.Same(t, "a flow that "+answers+" answers: matched", f.MatchConntrackFlow(flow), want)
	}
}

// shaped makes veth0, whose root queue is a tbf with a rate above 32 bits, and which
// redirects received packets to ifb0.
func shaped(t *testing.T) (c *Conn, h *netlink.Handle, host, ifb Link) {
	t.Helper()
	ns, container := newNS(t, "host"), newNS(t, "container")
	c = mustDial(t, ns)
	pair := expect.Value(Veth{Name: "eth0"}.Create(c, container))(t)
	ifb = expect.Value(Ifb{Name: "ifb0", MTU: 1400, MAC: []byte{2, 0, 0, 0, 0, 9}}.Create(c))(t)
	expect.That(t, ifb.MAC.String() == "02:00:00:00:00:09" && ifb.MTU == 1400 && ifb.Up(), "got the ifb %+v", ifb)
	h = expect.Value(netlink.NewHandleAt(vnetns.NsHandle(ns.File().Fd()), unix.NETLINK_ROUTE))(t)
	t.Cleanup(h.Close)
	host = pair.Host
	expect.NoError(t, errors.Join(
		h.QdiscAdd(&netlink.Tbf{
			QdiscAttrs: netlink.QdiscAttrs{LinkIndex: host.Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
			Rate:       5 << 32, Limit: 1000, Buffer: 2000,
		}),
		h.QdiscAdd(&netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: host.Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS,
		}}),
		h.FilterAdd(&netlink.U32{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: host.Index, Parent: netlink.MakeHandle(0xffff, 0), Priority: 7, Protocol: unix.ETH_P_ALL},
			ClassId:     netlink.MakeHandle(1, 2),
			RedirIndex:  ifb.Index,
		}),
		h.FilterAdd(&netlink.U32{ // which does not redirect
			FilterAttrs: netlink.FilterAttrs{LinkIndex: host.Index, Parent: netlink.MakeHandle(0xffff, 0), Priority: 8, Protocol: unix.ETH_P_ALL},
			ClassId:     netlink.MakeHandle(1, 3),
		})))
	return c, h, host, ifb
}

func TestQueues(t *testing.T) {
	c, h, host, ifb := shaped(t)
	defer c.Close()
	want := Queues{
		Root:      Queue{Kind: "tbf", Handle: netlink.MakeHandle(1, 0), Bucket: Bucket{Rate: 5 << 32, Limit: 1000, Buffer: 2000}},
		Ingress:   Queue{Kind: "ingress", Handle: netlink.MakeHandle(0xffff, 0)},
		Redirects: []Redirect{{To: ifb.Index, Handle: 0x80000800, Class: netlink.MakeHandle(1, 2), Priority: 7}},
	}
	compare := func(when string) {
		t.Helper()
		expect.Same(t, when, expect.Value(c.Queues(host.Index))(t), want)
	}
	compare("as it was made")

	expect.NoError(t, c.Delete(ifb.Index))
	want.Redirects[0].To = 0
	compare("without the ifb")

	q, err := c.Queues(1) // lo, which is down
	expect.That(t, err == nil && q.Root.Handle == 0 && q.Ingress.Kind == "" && q.Redirects == nil, "lo: got %+v, %v", q, err)
	_, err = c.Queues(9999)
	expect.That(t, NotFound(err), "no interface: got %v", err)
	expect.NoError(t, h.QdiscDel(&netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: host.Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS}}))
	want.Ingress, want.Redirects = Queue{}, nil
	compare("without the ingress queue")
}

func TestQueuesThatAreTruncated(t *testing.T) {
	var q Queue
	for _, body := range [][]byte{nil, make([]byte, nl.SizeofTcMsg-1), append(make([]byte, nl.SizeofTcMsg), 9, 0, 1, 0)} {
		m := parse(unix.RTM_NEWQDISC, body)
		q.parse(m, 0)
		expect.That(t, errors.Is(*m.bad, errTruncated), "queue of %d bytes: got %v", len(body), *m.bad)
		m = parse(unix.RTM_NEWTFILTER, body)
		parseRedirect(m)
		expect.That(t, errors.Is(*m.bad, errTruncated), "filter of %d bytes: got %v", len(body), *m.bad)
	}
}

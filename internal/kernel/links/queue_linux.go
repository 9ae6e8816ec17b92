package links

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Queues are the queues of an interface (traffic control).
type Queues struct {
	Root      Queue      // of the packets that it sends
	Ingress   Queue      // of the packets that it receives
	Redirects []Redirect // of the packets that it receives, in the order of the kernel
}

// Queue is a queue. The zero Queue means that there is none, or one that the kernel
// does not show.
type Queue struct {
	Kind   string // "tbf", "ingress", "noqueue"
	Handle uint32 // 0: the kernel has made it by itself
	Bucket Bucket // of a tbf
}

// Bucket is the token bucket of a tbf.
type Bucket struct {
	Rate   uint64 // bytes a second
	Limit  uint32 // bytes in the queue
	Buffer uint32 // the burst, in ticks of the packet scheduler
}

func (b Bucket) String() string {
	return fmt.Sprintf("rate %d, limit %d, buffer %d", b.Rate, b.Limit, b.Buffer)
}

// Redirect is a u32 filter that makes another interface send the packets that an
// interface receives.
type Redirect struct {
	To       int // the index of the other interface; 0: it is gone, and the packets are lost
	Handle   uint32
	Class    uint32
	Priority uint16
}

// filtersIngress is the queue of an ingress or clsact, as a parent of filters.
const filtersIngress = 0xffff0000

// Queues returns the queues of an interface. It asks for them one by one: a list, which
// is all that package netlink can ask for, would have those of all interfaces.
func (c *Conn) Queues(index int) (q Queues, err error) {
	what := fmt.Sprintf("queues of interface %d", index)
	for parent, to := range map[uint32]*Queue{netlink.HANDLE_ROOT: &q.Root, netlink.HANDLE_INGRESS: &q.Ingress} {
		// Older kernels answer only with NLM_F_ECHO. A queue that they do not show
		// has no answer, or is invalid.
		m := request(unix.RTM_GETQDISC, unix.NLM_F_ECHO|unix.NLM_F_ACK, tcmsg(index, parent))
		err := c.do(m, func(m message) { to.parse(m, parent) }, what, unix.ENOENT, unix.EINVAL)
		if err != nil {
			return Queues{}, err
		}
	}
	// The filters of the packets that the interface receives.
	m := request(unix.RTM_GETTFILTER, unix.NLM_F_DUMP, tcmsg(index, filtersIngress))
	err = c.list(m, func() { q.Redirects = nil }, func(m message) {
		if to, ok := parseRedirect(m); ok {
			q.Redirects = append(q.Redirects, to)
		}
	})
	if err != nil {
		return Queues{}, fmt.Errorf("filters of interface %d: %w", index, err)
	}
	return q, nil
}

// tcmsg is the fixed part of a request about a queue.
func tcmsg(index int, parent uint32) *nl.TcMsg {
	return &nl.TcMsg{Ifindex: int32(index), Parent: parent}
}

// parse reads an RTM_NEWQDISC. It ignores queues of another parent.
func (q *Queue) parse(m message, parent uint32) {
	fixed := nl.DeserializeTcMsg(m.body)
	if fixed.Parent != parent {
		return
	}
	*q = Queue{Kind: m.str(nl.TCA_KIND), Handle: fixed.Handle}
	if q.Kind != "tbf" {
		return
	}
	options := m.nest(nl.TCA_OPTIONS)
	if parms := options.get(nl.TCA_TBF_PARMS); len(parms) >= nl.SizeofTcTbfQopt {
		bucket := nl.DeserializeTcTbfQopt(parms)
		q.Bucket = Bucket{Rate: uint64(bucket.Rate.Rate), Limit: bucket.Limit, Buffer: bucket.Buffer}
	}
	if rate := options.get(nl.TCA_TBF_RATE64); len(rate) >= 8 { // more than 32 bits
		q.Bucket.Rate = native.Uint64(rate)
	}
}

// parseRedirect reads an RTM_NEWTFILTER. ok is false if the filter does not redirect.
func parseRedirect(m message) (to Redirect, ok bool) {
	if m.str(nl.TCA_KIND) != "u32" {
		return to, false
	}
	fixed := nl.DeserializeTcMsg(m.body)
	options := m.nest(nl.TCA_OPTIONS)
	to = Redirect{Handle: fixed.Handle, Priority: uint16(fixed.Info >> 16), Class: options.num(nl.TCA_U32_CLASSID)}
	for _, value := range options.nest(nl.TCA_U32_ACT).each {
		action := m.within(value)
		parms := action.nest(nl.TCA_ACT_OPTIONS).get(nl.TCA_MIRRED_PARMS)
		// struct tc_mirred; package nl takes it to be two bytes longer.
		if !ok && action.str(nl.TCA_ACT_KIND) == "mirred" && len(parms) >= 28 && native.Uint32(parms[20:]) == uint32(netlink.TCA_EGRESS_REDIR) {
			to.To, ok = int(native.Uint32(parms[24:])), true
		}
	}
	return to, ok
}

package bandwidth

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/plugin"
)

// shaper makes the parts of a limit, at the host's end of a veth pair: in an ADD all of
// them, in a repair those that are missing.
type shaper struct {
	nl    *netlink.Handle
	conn  *links.Conn
	host  links.Link
	again bool           // a repair: a part that is there is no error
	undo  []func() error // deletes the parts that were made: the host's end may outlive a failed ADD
}

// shape calls do with a shaper. If it fails in an ADD, everything that was made goes.
func shape(ctx context.Context, r *plugin.Request, again bool, do func(*shaper) error) error {
	return onHostEnd(ctx, r, func(conn *links.Conn, host links.Link) error {
		nl, err := netlink.NewHandleAt(vnetns.NsHandle(r.Host.File().Fd()), unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("netlink socket in namespace %s: %w", r.Host.ID(), err)
		}
		defer nl.Close()
		s := &shaper{nl: nl, conn: conn, host: host, again: again}
		if err = do(s); err == nil || again {
			return err
		}
		for _, undo := range slices.Backward(s.undo) {
			if undone := undo(); undone != nil {
				err = joined.Errors(err, fmt.Errorf("undo: %w", undone))
			}
		}
		return err
	})
}

// limit adds the token bucket of a limit, as a device's root queue.
func (s *shaper) limit(on links.Link, l limit) error { return s.add(tbf(on.Index, l), on) }

func tbf(index int, l limit) *netlink.Tbf {
	b := bucketOf(l, netlink.TickInUsec())
	return &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: index,
			Handle:    netlink.MakeHandle(1, 0),
			Parent:    netlink.HANDLE_ROOT,
		},
		Rate: b.Rate, Limit: b.Limit, Buffer: b.Buffer,
	}
}

// latency is the longest time that a packet waits for tokens, in microseconds:
// 25 ms, as in the reference plugin.
const latency = 25_000

// second is a second in the packet scheduler's unit, microseconds.
const second = 1_000_000

// bucketOf converts a limit as the reference plugin does, with its rounding,
// because its CHECK compares the values.
func bucketOf(l limit, ticksPerMicrosecond float64) links.Bucket {
	rate, burst := l.rate/8, uint32(l.burst/8)
	microseconds := uint32(float64(burst) * second / float64(rate))
	return links.Bucket{
		Rate:   rate,
		Limit:  uint32(float64(rate)*latency/second) + burst,
		Buffer: uint32(float64(microseconds) * ticksPerMicrosecond),
	}
}

// add adds a queue to an interface.
func (s *shaper) add(q netlink.Qdisc, to links.Link) error {
	err := s.nl.QdiscAdd(q)
	switch {
	case err == nil:
		s.undo = append(s.undo, func() error { return s.nl.QdiscDel(q) })
		return nil
	case errors.Is(err, unix.EEXIST) && s.again: // perhaps another's, as the next comparison tells
		return nil
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("this kernel has no queue %s: %w", q.Type(), err)
	}
	return fmt.Errorf("add queue %s to interface %q: %w", q.Type(), to.Name, err)
}

// makeIfb creates the ifb device under the first free name, with the hardware address of the
// result if there is one: a DEL knows the device by it.
func (s *shaper) makeIfb(names []string, mac string) (ifb links.Link, err error) {
	device := links.Ifb{MTU: s.host.MTU}
	if mac != "" {
		if device.MAC, err = net.ParseMAC(mac); err != nil {
			return ifb, fmt.Errorf("interface %q in the result: %w", names[0], err)
		}
	}
	for _, device.Name = range names {
		if ifb, err = device.Create(s.conn); !errors.Is(err, unix.EEXIST) {
			break
		}
	}
	switch {
	case err == nil:
		s.undo = append(s.undo, func() error { return s.conn.Delete(ifb.Index) })
		return ifb, nil
	case s.again && errors.Is(err, unix.EEXIST):
		return s.raise(device.Name)
	case errors.Is(err, unix.EEXIST):
		return ifb, fmt.Errorf("interface %q, which is named after this interface of the container, is there already: "+
			"an earlier one was not deleted: %w", device.Name, unix.EEXIST)
	case errors.Is(err, unix.EOPNOTSUPP):
		return ifb, fmt.Errorf("egressRate needs an interface of type ifb, which this kernel does not have (CONFIG_IFB): %w", err)
	}
	return ifb, fmt.Errorf("add interface %q of type ifb: %w", device.Name, err)
}

// raise sets an ifb device up that is there.
func (s *shaper) raise(name string) (links.Link, error) {
	ifb, err := s.conn.Link(name)
	switch {
	case err == nil && ifb.Kind != "ifb":
		return ifb, fmt.Errorf("interface %q is of type %q, and not an ifb", name, ifb.Kind)
	case err != nil || ifb.Up():
		return ifb, err
	}
	return ifb, s.conn.Change(ifb.Index, links.Change{Set: unix.IFF_UP})
}

// lead limits an ifb device, and leads the packets to it that the host's end receives.
func (s *shaper) lead(ifb links.Link, l limit) error {
	if err := s.limit(ifb, l); err != nil {
		return err
	}
	return s.redirect(ifb)
}

// The form of the filter.
const (
	ingressKind      = "ingress" // of the queue of received packets
	redirectPriority = 1
	redirectClass    = 1<<16 | 1 // 1:1
)

// ingress is the queue of what an interface receives.
func ingress(index int) *netlink.Ingress {
	return &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS}}
}

// redirect adds the queue and the filter by which packets that the host's end receives go
// out by the ifb device. A filter that leads to an earlier device, which is gone, is changed.
func (s *shaper) redirect(ifb links.Link) error {
	queue := ingress(s.host.Index)
	if err := s.add(queue, s.host); err != nil {
		return err
	}
	filter, put := &netlink.U32{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: s.host.Index, Parent: queue.Handle, Priority: redirectPriority, Protocol: unix.ETH_P_ALL},
		ClassId:     redirectClass, RedirIndex: ifb.Index,
		Actions: []netlink.Action{&netlink.MirredAction{MirredAction: netlink.TCA_EGRESS_REDIR, Ifindex: ifb.Index}},
	}, s.nl.FilterAdd
	if s.again {
		has, err := s.conn.Queues(s.host.Index)
		if err != nil || has.Ingress.Kind != ingressKind || leads(has.Redirects, ifb.Index) {
			return err
		}
		if lost := slices.IndexFunc(has.Redirects, isLost); lost >= 0 {
			filter.Handle, put = has.Redirects[lost].Handle, s.nl.FilterReplace
		}
	}
	if err := put(filter); err != nil {
		return fmt.Errorf("redirect from interface %q to %q: %w", s.host.Name, ifb.Name, err)
	}
	return nil
}

// leads reports whether the filters redirect to an interface. A filter to a device
// that is gone, as this plugin makes it, loses the packets before the next one sees
// them.
func leads(all []links.Redirect, index int) bool {
	for _, to := range all {
		if to.To == index {
			return true
		}
		if isLost(to) {
			return false
		}
	}
	return false
}

// isLost reports whether a filter of this plugin's form leads to a device that is gone.
func isLost(f links.Redirect) bool {
	return f.To == 0 && f.Priority == redirectPriority && f.Class == redirectClass
}

// Check returns an error unless the limits are set and in force.
func (p Plugin) Check(ctx context.Context, r *plugin.Request) error { return contract.Check(ctx, r, p) }

// Compare compares the limits with the queues of the host's end and of the ifb device.
func (Plugin) Compare(_ context.Context, r *plugin.Request, v *contract.View) ([]contract.Difference, error) {
	c, err := parse(r)
	if err != nil || c.none() { // as in Add, which needs no veth pair then
		return nil, err
	}
	host, err := findHostEnd(r, v.Container, v.Host)
	if lost := (noPair{}); errors.As(err, &lost) {
		return []contract.Difference{{
			Kind: contract.Interface, Inside: lost.inside, Object: r.IfName, Wanted: "a veth pair", Err: err,
			Why: "bandwidth limits the interface of another plugin, and makes none",
		}}, nil
	}
	if err != nil {
		return nil, err
	}
	cmp := &comparison{request: r, view: v, host: host}
	if c.ingress != (limit{}) {
		cmp.about = "limit of the traffic to the container"
		err = cmp.bucket(host, c.ingress, cmp.make(func(s *shaper) error { return s.limit(s.host, c.ingress) }))
	}
	if c.egress != (limit{}) && err == nil {
		cmp.about = "limit of the traffic from the container"
		err = cmp.egress(c.egress)
	}
	return cmp.found, err
}

// comparison collects the differences of one attachment.
type comparison struct {
	request *plugin.Request
	view    *contract.View
	host    links.Link // the host's end of the veth pair
	about   string     // the limit that is compared now
	found   []contract.Difference
}

func (c *comparison) add(d contract.Difference, err error) {
	d.Err = fmt.Errorf("%s: %w", c.about, err)
	c.found = append(c.found, d)
}

// make returns a Fix that makes a part for the host's end as it is then.
func (c *comparison) make(part func(*shaper) error) func(context.Context) error {
	return func(ctx context.Context) error { return shape(ctx, c.request, true, part) }
}

// bucket compares the root queue of an interface with a limit. It accepts a queue of
// another type that somebody else has put there. The kernel's own queue, which has no
// handle, means that the limit is gone.
func (c *comparison) bucket(link links.Link, l limit, fix func(context.Context) error) error {
	has, err := c.view.Host.Queues(link.Index)
	if err != nil {
		return fmt.Errorf("%s: %w", c.about, err)
	}
	want, root := bucketOf(l, netlink.TickInUsec()), has.Root
	d := contract.Difference{Kind: contract.Queue, Object: "tbf of " + link.Name, Wanted: want.String()}
	switch {
	case root.Kind == "tbf":
		if got := root.Bucket; got != want {
			d.Found, d.Why = got.String(), "somebody has changed the limit"
			c.add(d, fmt.Errorf("interface %q has a tbf with %s, and not %s", link.Name, got, want))
		}
	case root.Handle != 0:
	case root.Kind == "":
		d.Fix = fix
		c.add(d, fmt.Errorf("interface %q has no queue", link.Name))
	default:
		d.Fix = fix
		c.add(d, fmt.Errorf("interface %q has a queue of type %q, and no tbf", link.Name, root.Kind))
	}
	return nil
}

// egress compares the ifb device, and what leads the packets to it that the host's end
// receives.
func (c *comparison) egress(l limit) error {
	device, made := types100.Interface{Name: names(c.request)[0]}, contract.OnHost(c.request, names(c.request)...)
	if made != nil {
		device = *made
	}
	fix := c.make(func(s *shaper) error {
		ifb, err := s.makeIfb([]string{device.Name}, device.Mac)
		if err != nil {
			return err
		}
		return s.lead(ifb, l)
	})
	d := contract.Difference{Kind: contract.Interface, Object: device.Name, Wanted: "an ifb that is up", Fix: fix}
	ifb, err := c.view.Host.Link(device.Name)
	switch {
	case links.NotFound(err) && made == nil:
		d.Fix, d.Why = nil, "the result does not name it, so a DEL would not delete it"
		c.add(d, err)
		return nil
	case links.NotFound(err):
		c.add(d, err)
		c.add(contract.Difference{ // the queues went with the device
			Kind: contract.Queue, Object: "tbf of " + device.Name, Wanted: bucketOf(l, netlink.TickInUsec()).String(), Fix: fix,
		}, err)
		return c.redirection(ifb, device.Name, fix)
	case err != nil:
		return fmt.Errorf("%s: %w", c.about, err)
	}
	is := fmt.Errorf("interface %q of type %q is not an ifb that is up", device.Name, ifb.Kind)
	if ifb.Kind != "ifb" {
		d.Found, d.Fix, d.Why = fmt.Sprintf("an interface of type %q", ifb.Kind), nil, "another interface has the name"
		c.add(d, is)
		return nil
	}
	if !ifb.Up() {
		d.Found = "down"
		c.add(d, is)
	}
	if err := c.bucket(ifb, l, fix); err != nil {
		return err
	}
	return c.redirection(ifb, device.Name, fix)
}

// redirection compares the filter that leads the packets to the ifb device, which has
// the zero Link if it is gone.
func (c *comparison) redirection(ifb links.Link, name string, fix func(context.Context) error) error {
	has, err := c.view.Host.Queues(c.host.Index)
	if err != nil {
		return fmt.Errorf("%s: %w", c.about, err)
	}
	if ifb.Index != 0 && leads(has.Redirects, ifb.Index) {
		return nil
	}
	d := contract.Difference{Kind: contract.Queue, Object: "ingress of " + c.host.Name, Wanted: "redirected to " + name, Fix: fix}
	if kind := has.Ingress.Kind; kind != "" && kind != ingressKind {
		d.Found, d.Fix, d.Why = "a queue of type "+kind, nil, "somebody has another queue there"
	}
	c.add(d, fmt.Errorf("interface %q does not redirect its ingress to %q", c.host.Name, name))
	return nil
}

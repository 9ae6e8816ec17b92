package bandwidth

import (
	"context"
	"errors"
	"fmt"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/plugin"
)

// Check returns an error unless the limits are set and in force.
func (p Plugin) Check(ctx context.Context, r *plugin.Request) error { return compare.Check(ctx, r, p) }

// Compare compares the limits with the queues of the host's end and of the ifb device.
func (Plugin) Compare(_ context.Context, r *plugin.Request, v *compare.View) ([]compare.Difference, error) {
	c, err := parse(r)
	if err != nil || c.none() { // as in Add, which needs no veth pair then
		return nil, err
	}
	host, err := findHostEnd(r, v.Container, v.Host)
	if lost := (noPair{}); errors.As(err, &lost) {
		return []compare.Difference{{
			Kind: compare.Interface, Inside: lost.inside, Object: r.IfName, Wanted: "a veth pair", Err: err,
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
	view    *compare.View
	host    links.Link // the host's end of the veth pair
	about   string     // the limit that is compared now
	found   []compare.Difference
}

func (c *comparison) add(d compare.Difference, err error) {
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
	has, err := c.view.Queues.Queues(link.Index)
	if err != nil {
		return fmt.Errorf("%s: %w", c.about, err)
	}
	want, root := bucketOf(l, netlink.TickInUsec()), has.Root
	d := compare.Difference{Kind: compare.Queue, Object: "tbf of " + link.Name, Wanted: want.String()}
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
	device, made := types100.Interface{Name: names(c.request)[0]}, compare.OnHost(c.request, names(c.request)...)
	if made != nil {
		device = *made
	}
	fix := c.make(func(s *shaper) error {
		ifb, err := s.makeIfb(device)
		if err != nil {
			return err
		}
		return s.lead(ifb, l)
	})
	d := compare.Difference{Kind: compare.Interface, Object: device.Name, Wanted: "an ifb that is up", Fix: fix}
	ifb, err := c.view.Host.Link(device.Name)
	switch {
	case err != nil && !links.NotFound(err):
		return fmt.Errorf("%s: %w", c.about, err)
	case err != nil && made == nil:
		d.Fix, d.Why = nil, "the result does not name it, so a DEL would not delete it"
		c.add(d, err)
		return nil
	case err != nil:
		c.add(d, err)
		c.add(compare.Difference{ // the queues went with the device
			Kind: compare.Queue, Object: "tbf of " + device.Name, Wanted: bucketOf(l, netlink.TickInUsec()).String(), Fix: fix,
		}, err)
		return c.redirection(ifb, device.Name, fix)
	case ifb.Kind != "ifb":
		d.Found, d.Fix, d.Why = fmt.Sprintf("an interface of type %q", ifb.Kind), nil, "another interface has the name"
	case !ifb.Up():
		d.Found = "down"
	}
	if d.Found != "" {
		c.add(d, fmt.Errorf("interface %q of type %q is not an ifb that is up", device.Name, ifb.Kind))
	}
	if ifb.Kind != "ifb" {
		return nil
	}
	if err := c.bucket(ifb, l, fix); err != nil {
		return err
	}
	return c.redirection(ifb, device.Name, fix)
}

// redirection compares the filter that leads the packets to the ifb device, which has
// the zero Link if it is gone.
func (c *comparison) redirection(ifb links.Link, name string, fix func(context.Context) error) error {
	has, err := c.view.Queues.Queues(c.host.Index)
	if err != nil {
		return fmt.Errorf("%s: %w", c.about, err)
	}
	if ifb.Index != 0 && leads(has.Redirects, ifb.Index) {
		return nil
	}
	d := compare.Difference{Kind: compare.Queue, Object: "ingress of " + c.host.Name, Wanted: "redirected to " + name, Fix: fix}
	if kind := has.Ingress.Kind; kind != "" && kind != ingressKind {
		d.Found, d.Fix, d.Why = "a queue of type "+kind, nil, "somebody has another queue there"
	}
	c.add(d, fmt.Errorf("interface %q does not redirect its ingress to %q", c.host.Name, name))
	return nil
}

package hostwatch

import (
	"context"
	"errors"

	"github.com/embedcni/cni/internal/guard"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/internal/nft"
)

// A Watcher watches one namespace.
type Watcher struct {
	host  *hostns.NetNS
	links *links.Listener // nil: not needed
	rules *nft.Listener   // nil: not needed, or the kernel has no nf_tables
}

// Open watches for changes of these classes. The caller closes them, and keeps host open.
func Open(host *hostns.NetNS, classes guard.Class, buffer int) (_ *Watcher, err error) {
	e := &Watcher{host: host}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.Close())
		}
	}()
	// The state of the interfaces is needed for addresses and routes too.
	if classes&(guard.Links|guard.Routes) != 0 {
		e.links, err = links.Listen(host.Handle, links.Changes{
			Links: true, Addresses: classes&guard.Links != 0, Queues: classes&guard.Links != 0,
			Routes: classes&guard.Routes != 0, Buffer: buffer,
		})
		if err != nil {
			return nil, err
		}
	}
	if classes&guard.Rules != 0 {
		if e.rules, err = nft.Listen(host.Handle, buffer); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// All returns the sources of events, each for one use.
func (e *Watcher) All() (all []guard.Source) {
	if e.links != nil {
		all = append(all, e.watchLinks)
	}
	if e.rules != nil {
		all = append(all, e.watchRules)
	}
	return all
}

// Close stops watching.
func (e *Watcher) Close() error {
	var errs []error
	if e.links != nil {
		errs = append(errs, e.links.Close())
	}
	if e.rules != nil {
		errs = append(errs, e.rules.Close())
	}
	return errors.Join(errs...)
}

// Interfaces lists the interfaces, and the ports of bridges.
func (e *Watcher) Interfaces(context.Context) (found []guard.Link, ports []guard.Port, err error) {
	c, err := e.host.Conns.Borrow(e.host.Handle)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	all, err := c.Links()
	if err != nil {
		return nil, nil, err
	}
	for _, l := range all {
		found = append(found, linkOf(&l, false))
		if l.Port.Master != 0 {
			ports = append(ports, portOf(l.Index, &l.Port.PortMode))
		}
	}
	vlans, err := c.PortVLANs()
	for index, all := range vlans {
		ports = append(ports, guard.Port{Interface: index, VLANs: vlansOf(all)})
	}
	return found, ports, err
}

func linkOf(l *links.Link, gone bool) guard.Link {
	return guard.Link{Index: l.Index, Name: l.Name, Up: l.Up(), Master: l.Port.Master, Gone: gone, DefaultVLAN: l.DefaultVLAN}
}

func portOf(index int, mode *links.PortMode) guard.Port {
	p := guard.Port{Interface: index}
	if mode != nil {
		p.Mode = &guard.PortMode{Hairpin: mode.Hairpin, Isolated: mode.Isolated}
	}
	return p
}

func vlansOf(all links.VLANs) *[]guard.VLANs {
	found := make([]guard.VLANs, len(all))
	for i, v := range all {
		found[i] = guard.VLANs{First: v.First, Last: v.Last, Own: v.Access}
	}
	return &found
}

func (e *Watcher) watchLinks(ctx context.Context, emit func(guard.Event)) error {
	for {
		lost, err := e.links.Next(ctx, func(h links.Announcement) {
			switch {
			case h.Link != nil:
				l := linkOf(h.Link, h.Gone)
				emit(guard.Event{Link: &l})
				if l.Master != 0 && !l.Gone {
					p := portOf(l.Index, &h.Link.Port.PortMode)
					emit(guard.Event{Port: &p})
				}
			case h.BridgePort != nil:
				p := portOf(h.BridgePort.Interface, h.BridgePort.Mode)
				p.VLANs = vlansOf(h.BridgePort.VLANs)
				emit(guard.Event{Port: &p})
			case h.Address != nil && h.Gone:
				emit(guard.Event{Address: &guard.Address{Interface: h.Address.Interface}})
			case h.Queue != nil:
				if h.Gone && isPlugins(h.Queue) {
					emit(guard.Event{Queue: &guard.Queue{Interface: h.Queue.Interface}})
				}
			case h.Gone:
				for _, r := range h.Routes {
					emit(guard.Event{Route: &guard.Route{Interface: r.Interface, Dst: r.Dst}})
				}
			}
		})
		if err != nil {
			return err
		}
		if lost {
			emit(guard.Event{Lost: guard.Links | guard.Routes})
		}
	}
}

// isPlugins reports whether a queue or a filter is of a kind that plugins make. What they
// replace, such as the queue that the kernel gives to a new interface, is deleted too.
func isPlugins(q *links.HeardQueue) bool {
	if q.Filter {
		return q.Kind == "u32"
	}
	return q.Kind == "tbf" || q.Kind == "ingress"
}

func (e *Watcher) watchRules(ctx context.Context, emit func(guard.Event)) error {
	for {
		lost, err := e.rules.Next(ctx, func(c nft.Change) { emit(guard.Event{Rules: &guard.Changed{By: c.Name}}) })
		if err != nil {
			return err
		}
		if lost {
			emit(guard.Event{Lost: guard.Rules})
		}
	}
}

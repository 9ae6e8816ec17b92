package ears

import (
	"context"
	"errors"
	"net/netip"

	"github.com/embedcni/cni/internal/guard"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/internal/nft"
)

// Ears are open ears in one namespace.
type Ears struct {
	host  *hostns.NetNS
	links *links.Listener // nil: not needed
	rules *nft.Listener   // nil: not needed, or the kernel has no nf_tables
}

// Open opens the ears for these classes. The caller closes them, and keeps host open.
func Open(host *hostns.NetNS, classes guard.Class, buffer int) (_ *Ears, err error) {
	e := &Ears{host: host}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.Close())
		}
	}()
	// The state of the interfaces is needed for addresses and routes too.
	if classes&(guard.Links|guard.Routes) != 0 {
		e.links, err = links.Listen(host.Handle, links.Changes{
			Links: true, Addresses: classes&guard.Links != 0, Routes: classes&guard.Routes != 0, Buffer: buffer,
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

// All returns the ears, each of which hears once.
func (e *Ears) All() (all []guard.Ear) {
	if e.links != nil {
		all = append(all, e.hearLinks)
	}
	if e.rules != nil {
		all = append(all, e.hearRules)
	}
	return all
}

// Close closes the ears.
func (e *Ears) Close() error {
	var errs []error
	if e.links != nil {
		errs = append(errs, e.links.Close())
	}
	if e.rules != nil {
		errs = append(errs, e.rules.Close())
	}
	return errors.Join(errs...)
}

// Interfaces lists the interfaces.
func (e *Ears) Interfaces(context.Context) ([]guard.Link, error) {
	all, err := e.host.Conns.Links(e.host.Handle)
	if err != nil {
		return nil, err
	}
	found := make([]guard.Link, len(all))
	for i, l := range all {
		found[i] = linkOf(&l, false)
	}
	return found, nil
}

func linkOf(l *links.Link, gone bool) guard.Link {
	return guard.Link{Index: l.Index, Name: l.Name, Up: l.Up(), Master: l.Port.Master, Gone: gone}
}

func (e *Ears) hearLinks(ctx context.Context, hear func(guard.Event)) error {
	for {
		lost, err := e.links.Next(ctx, func(h links.Heard) {
			switch {
			case h.Link != nil:
				l := linkOf(h.Link, h.Gone)
				hear(guard.Event{Link: &l})
			case h.Address != nil && h.Gone:
				hear(guard.Event{Address: &guard.Address{Interface: h.Address.Interface}})
			case h.Gone:
				for _, r := range h.Routes {
					hear(guard.Event{Route: &guard.Route{Interface: r.Interface, Dst: r.Dst}})
				}
			}
		})
		if err != nil {
			return err
		}
		if lost {
			hear(guard.Event{Lost: guard.Links | guard.Routes})
		}
	}
}

func (e *Ears) hearRules(ctx context.Context, hear func(guard.Event)) error {
	for {
		lost, err := e.rules.Next(ctx, func(h nft.Heard) {
			if h.End != nil {
				hear(guard.Event{By: h.End.Name})
				return
			}
			hear(guard.Event{Object: objectOf(h)})
		})
		if err != nil {
			return err
		}
		if lost {
			hear(guard.Event{Lost: guard.Rules})
		}
	}
}

func objectOf(h nft.Heard) *guard.Object {
	o := &guard.Object{
		Added: h.Added, Family: h.Table.Family, Table: h.Table.Name, Chain: h.Chain, Set: h.Set,
		Rule: h.Rule != nil, HasElement: len(h.Elements) > 0,
	}
	for _, e := range h.Elements {
		if e.Comment != "" {
			o.Comments = append(o.Comments, e.Comment)
		}
	}
	if h.Rule == nil || h.Added {
		return o
	}
	if h.Rule.Comment != "" {
		o.Comments = append(o.Comments, h.Rule.Comment)
	}
	for _, x := range h.Rule.Exprs.List() {
		if to := x.Jump(); to != "" {
			o.Jump = to
		}
		if a, ok := netip.AddrFromSlice(x.Value()); ok {
			o.Addresses = append(o.Addresses, a)
		}
		if name, info := x.Extension(); name == "comment" {
			o.Comments = append(o.Comments, text(info))
		}
	}
	return o
}

// text returns the bytes before the first zero byte.
func text(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}

package netfilter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/kernel/nft"
	"github.com/embedcni/cni/internal/kernel/thread"
	"github.com/embedcni/cni/netns"
)

// kindOfChange identifies the changes that go in one transaction.
type kindOfChange struct {
	name string // "add", "remove" or "restore"
	ns   netns.ID
}

// change is the rules of an attachment that are to be changed.
type change struct {
	fw    *Firewalls
	rules []Rule
}

// Add makes the rules, when Batch is flushed if there is one.
func (fw *Firewalls) Add(ctx context.Context, r ...Rule) error {
	return fw.join(ctx, "add", r, func(ctx context.Context, all []change) error { return fw.add(ctx, all, true) })
}

// Restore adds those of the rules that do not exist, when Batch is flushed if there is
// one, whoever had made them in which form. It replaces and doubles nothing, and leaves
// the rules of others where they are. It can be repeated, and is for parts that Missing
// has returned. If another rule is in the place of one, the error is an
// [ErrInPlace] or [ErrHostPortTaken].
//
// Batches of several attachments restore their rules together, see
// [thread.FlushTogether]. If that fails, some may have been added.
func (fw *Firewalls) Restore(ctx context.Context, r ...Rule) error {
	return fw.join(ctx, "restore", r, func(ctx context.Context, all []change) error { return fw.add(ctx, all, false) })
}

// Remove deletes the rules, when Batch is flushed if there is one. It leaves those of an
// attachment that has been given the same address since, and those that accept the packets
// of a network to [Find], which knows who needs them.
func (fw *Firewalls) Remove(ctx context.Context, r ...Rule) error {
	return fw.join(ctx, "remove", r, func(ctx context.Context, all []change) error {
		rules := together(all)
		if len(rules) > 0 {
			if err := (removal{fw.sockets, ownedBy(rules).find}).run(ctx); err != nil {
				return err
			}
		}
		return fw.forgetFlows(ctx, rules, false)
	})
}

// join calls do with the rules of all attachments whose changes of the kind go together.
func (fw *Firewalls) join(ctx context.Context, kind string, r []Rule, do func(context.Context, []change) error) error {
	var ns netns.ID // zero for that of the thread
	if fw.sockets.NS != nil {
		ns = fw.sockets.NS.ID()
	}
	return thread.Join(ctx, fw.Batch, kindOfChange{kind, ns}, change{fw, r}, do)
}

func together(all []change) (rules []Rule) {
	for _, one := range all {
		rules = append(rules, one.rules...)
	}
	return rules
}

// add adds the rules of all attachments. replace says whether that replaces elements that
// are in their way.
func (fw *Firewalls) add(ctx context.Context, all []change, replace bool) error {
	w := wants{of: make(map[element]*Firewalls), replace: replace}
	for _, one := range all {
		some, err := elementsOf(one.rules)
		if err != nil {
			return err
		}
		for _, e := range some {
			w.of[keyOf(e)] = one.fw
		}
		w.elements = append(w.elements, some...)
	}
	var err error
	if w.elements, err = eachKeyOnce(w.elements); err == nil && len(w.elements) > 0 {
		err = fw.sockets.Do(ctx, func(c *nft.Conn) error { return w.add(ctx, c) })
	}
	if err != nil {
		return err
	}
	return joined.Errors(acceptAll(ctx, all), fw.forgetFlows(ctx, together(all), !replace))
}

// acceptAll has the host forward the packets of attachments' networks.
func acceptAll(ctx context.Context, all []change) error {
	for _, one := range all {
		var addrs []netip.Prefix
		admin := chainAdmin
		for _, r := range one.rules {
			if r.Kind == Accept {
				addrs, admin = append(addrs, r.Addresses...), cmp.Or(r.AdminChain, chainAdmin)
			}
		}
		if err := one.fw.accept(ctx, Subnets(addrs), admin); err != nil {
			return err
		}
	}
	return nil
}

// wants are elements that are to be there.
type wants struct {
	elements []element
	of       map[element]*Firewalls // whose they are
	replace  bool                   // elements in their way
}

// add makes the elements in one transaction. If it may replace others, it does not look
// before: the kernel adds elements only if their keys are free. Only if it refuses, add
// looks at the table, and adds the missing part of the layout, too.
func (w wants) add(ctx context.Context, c *nft.Conn) error {
	if w.replace {
		var msgs []nft.Message
		for _, e := range w.elements {
			msgs = append(msgs, addElement(e))
		}
		// ENOENT: the table, or a set for that length, does not exist. EEXIST: there is an element
		// of an earlier attachment, or the like.
		err := c.Transact(msgs, nil)
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EEXIST) {
			return wrapNFT(err)
		}
	}
	var refused error // by missing, in its own words
	err := c.Change(ctx, func() (msgs []nft.Message, err error) {
		msgs, err = w.missing(c)
		refused = err
		return msgs, err
	})
	if refused != nil && errors.Is(err, refused) {
		return err
	}
	return wrapNFT(err)
}

// missing returns the messages that make the missing elements.
func (w wants) missing(c *nft.Conn) (msgs []nft.Message, err error) {
	tables := tablesOf(w.elements)
	s, err := query{tables: tables, keys: w.elements, layout: true}.read(c)
	if err != nil {
		return nil, wrapNFT(err)
	}
	for _, t := range tables {
		missing, _ := s.missing(t, setsOf(w.elements))
		msgs = append(msgs, missing...)
	}
	for _, e := range w.elements {
		fw := w.of[keyOf(e)]
		there, ok := s.elements[keyOf(e)]
		switch {
		case !ok:
		case there == e, isPort(e) && fw.Siblings().Have(there.Comment): // siblings share their ports
			continue
		case isPort(e) && there.Comment != e.Comment:
			return nil, fmt.Errorf("%w: there is %v", ErrHostPortTaken, elementText(there))
		case !w.replace:
			return nil, fmt.Errorf("nftables: %w: there is %v", ErrInPlace, elementText(there))
		default:
			// Another attachment has left it, or has the same address on a network of its
			// own; if that lives, it gets the element back.
			if tableOf(e.Set) == table {
				if err := fw.Notes.Note(DisplacedFact, true); err != nil {
					return nil, err
				}
			}
			msgs = append(msgs, ownedElement(there).Deletion())
		}
		msgs = append(msgs, addElement(e))
	}
	return msgs, nil
}

// forgetFlows makes conntrack forget the UDP flows to forwarded ports of the
// host. Only the first packet of a flow passes the rules: without this, a flow
// that continues would go on to its old destination. If restored, the rules were
// missing for a while: flows that began before are translated, and go on.
func (fw *Firewalls) forgetFlows(ctx context.Context, rules []Rule, restored bool) error {
	for _, v6 := range []bool{false, true} {
		flows := flowsTo(rules, v6, restored)
		if len(flows) == 0 {
			continue
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		_, err := links.Forget(fw.sockets.NS, v6, flows...)
		// An interrupted list was still read to its end, and a flow that was added
		// meanwhile has seen the rules. A kernel without ctnetlink refuses the
		// request as invalid; nobody can delete its flows.
		if err != nil && !errors.Is(err, links.ErrInterrupted) && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("forget the UDP flows to the host's ports: %w", err)
		}
	}
	return nil
}

// flowsTo returns the flows of a family that are to be forgotten.
func flowsTo(rules []Rule, v6, untranslated bool) (flows []links.Flows) {
	for _, r := range rules {
		// Without any address it is not known which families there were.
		in := len(r.Addresses) == 0 || slices.ContainsFunc(r.Addresses, func(p netip.Prefix) bool { return p.Addr().Unmap().Is6() == v6 })
		if p := r.Port; in && r.Kind == Publish && p.Protocol == "udp" && (!p.HostIP.IsValid() || p.HostIP.Is6() == v6) {
			flows = append(flows, links.Flows{Port: p.HostPort, Untranslated: untranslated})
		}
	}
	return flows
}

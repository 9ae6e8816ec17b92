package cni

import (
	"bytes"
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/footprint"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/internal/nsfind"
	"github.com/embedcni/cni/internal/sweep"
	"github.com/embedcni/cni/netns"
)

// sight is what was seen of an attachment when it had been made ahead of time:
// its interfaces on the host, which cannot be there without the container's, or
// where there are none the container's; its rules; and its addresses in zones of
// firewalld. To look whether they are unchanged takes one message for the interfaces
// and, as long as no rule on the host has changed, one for the rules. firewalld, if
// it has the addresses, takes one message for each.
type sight struct {
	inside bool // the interfaces are the container's
	names  []string
	links  []links.Link // by name; without an index if there was none
	rules  *netfilter.Witness
	zoned  []footprint.Zoned // addresses that firewalld had
}

// see looks at an attachment that is made as far as can be ahead of time.
func (a *attachment) see(ctx context.Context) (*sight, error) {
	t, done := a.target()
	defer done()
	ends := t.Interface.HostEnds
	s := &sight{inside: len(ends) == 0}
	for _, l := range ends {
		s.names = append(s.names, l.Name)
	}
	if s.inside && a.IfName != "lo" {
		s.names = []string{a.IfName}
	}
	var err error
	if s.links, err = a.op.lookUp(s); err != nil {
		return nil, err
	}
	if err := s.whole(); err != nil {
		return nil, err
	}
	if t.Rules.Possible {
		t.How.Thorough = false // its addresses are known
		if s.rules, err = netfilter.Watch(ctx, netfilter.Open(t.Host, caller.Netfilter(ctx)), t.RulesTarget()); err != nil {
			return nil, err
		}
		s.zoned, err = sweep.Firewalld{Bus: t.Firewalld, Host: t.Host}.Has(ctx, t.Zoned(t.Siblings.Addresses))
	}
	return s, err
}

// lookUp asks for the interfaces, all with one call of the kernel.
func (op *operation) lookUp(s *sight) ([]links.Link, error) {
	if len(s.names) == 0 {
		return nil, nil
	}
	ns := op.host.Handle
	if s.inside {
		ns = op.container
	}
	c, err := op.host.Conns.Borrow(ns)
	if err != nil {
		return nil, err
	}
	r := c.Requests()
	found := make([]*links.Link, len(s.names))
	for i, name := range s.names {
		found[i] = r.Link(name, unix.ENODEV)
	}
	err = join(r.Send(), c.Close())
	all := make([]links.Link, len(found))
	for i, l := range found {
		all[i] = *l
	}
	return all, err
}

// whole is an error if interfaces on the host that a plugin has just made are
// gone already, or no ports of the bridge.
func (s *sight) whole() error {
	if s.inside {
		return nil // plugins need not make the interface that they say
	}
	bridge := 0
	for i, l := range s.links {
		switch {
		case l.Index == 0:
			return fmt.Errorf("interface %s is gone: %w", s.names[i], errDead)
		case l.Kind == "bridge":
			bridge = l.Index
		case l.Kind == "veth" && l.Port.Master != bridge:
			return fmt.Errorf("interface %s is no port of its bridge: %w", l.Name, errDead)
		}
	}
	return nil
}

// still fails with errDead unless all is as it was seen.
func (s *sight) still(ctx context.Context, op *operation) error {
	now, err := op.lookUp(s)
	if err != nil {
		return err
	}
	for i, l := range now {
		if !alike(s.links[i], l) {
			return fmt.Errorf("interface %s is not as it was made: %w", s.names[i], errDead)
		}
	}
	if s.rules == nil {
		return nil
	}
	intact, err := s.rules.Intact(ctx, netfilter.Open(op.host.Handle, caller.Netfilter(ctx)))
	if err == nil && !intact {
		err = fmt.Errorf("rules of the packet filter are gone: %w", errDead)
	}
	if err != nil {
		return err
	}
	return s.stillZoned(ctx, op)
}

// stillZoned returns errDead if firewalld no longer has one of the addresses.
func (s *sight) stillZoned(ctx context.Context, op *operation) error {
	found, err := sweep.Firewalld{Bus: op.bus, Host: op.host.Handle}.Has(ctx, s.zoned)
	if err == nil && len(found) < len(s.zoned) {
		err = fmt.Errorf("addresses are gone from firewalld: %w", errDead)
	}
	return err
}

// alike compares what does not change by itself. A bridge's address and carrier
// come and go with its ports.
func alike(was, is links.Link) bool {
	if was.Index != is.Index || was.Up() && !is.Up() {
		return false
	}
	carrier := was.Flags&unix.IFF_LOWER_UP != 0 && is.Flags&unix.IFF_LOWER_UP == 0
	return was.Kind == "bridge" ||
		!carrier && was.Port.Master == is.Port.Master && was.Peer == is.Peer && bytes.Equal(was.MAC, is.MAC)
}

// there reports whether the mount is still there that the namespace is kept by.
func (w *warm) there() bool {
	id, err := nsfind.Identify(w.path)
	return err == nil && id == w.ns
}

func (op *operation) netNS() netns.ID { return op.container.ID() }

package cni

import (
	"context"
	"fmt"

	"github.com/embedcni/cni/internal/footprint"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/internal/nsfind"
	"github.com/embedcni/cni/internal/sweep"
	"github.com/embedcni/cni/internal/warm"
	"github.com/embedcni/cni/netns"
)

// sight is the state of an attachment after it was made ahead of time: its
// interfaces, its rules, and its addresses in zones of firewalld. Comparing it
// takes one message for the interfaces, one for the rules as long as no rule on
// the host has changed, and one for each address in firewalld.
type sight struct {
	interfaces *warm.Interfaces
	rules      *netfilter.Witness
	zoned      []footprint.Zoned // addresses that firewalld had
}

// see records the state of an attachment that was made as far as possible ahead
// of time.
func (a *attachment) see(ctx context.Context) (*sight, error) {
	t, done := a.target()
	defer done()
	var names []string
	for _, l := range t.Interface.HostEnds {
		names = append(names, l.Name)
	}
	s := &sight{}
	var err error
	if s.interfaces, err = warm.See(a.op.Host, a.op.NetNS, names, a.IfName); err != nil {
		return nil, err
	}
	if t.Rules.Possible {
		t.How.Thorough = false // its addresses are known
		if s.rules, err = netfilter.Watch(ctx, netfilter.Open(t.Host, t.Filters), t.RulesTarget()); err != nil {
			return nil, err
		}
		s.zoned, err = sweep.Firewalld{Bus: t.Firewalld, Host: t.Host}.Has(ctx, t.Zoned(t.Siblings.Addresses))
	}
	return s, err
}

// unchanged returns warm.ErrDead unless the state is the recorded one.
func (s *sight) unchanged(ctx context.Context, op *operation) error {
	if err := s.interfaces.Unchanged(op.Host, op.NetNS); err != nil || s.rules == nil {
		return err
	}
	intact, err := s.rules.Intact(ctx, netfilter.Open(op.Host.Handle, netfilter.Options{Sockets: op.sockets, Held: op.LockFile()}))
	if err == nil && !intact {
		err = fmt.Errorf("rules of the packet filter are gone: %w", warm.ErrDead)
	}
	if err != nil {
		return err
	}
	found, err := sweep.Firewalld{Bus: op.bus, Host: op.Host.Handle}.Has(ctx, s.zoned)
	if err == nil && len(found) < len(s.zoned) {
		err = fmt.Errorf("addresses are gone from firewalld: %w", warm.ErrDead)
	}
	return err
}

// there reports whether the mount that keeps the namespace still exists.
func (w *prepared) there() bool {
	id, err := nsfind.Identify(w.path)
	return err == nil && id == w.ns
}

func (op *operation) netNS() netns.ID { return op.NetNS.ID() }

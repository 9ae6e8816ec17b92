package sweep

import (
	"context"
	"net/netip"
	"strings"
	"time"

	"github.com/embedcni/cni/internal/netfilter"
)

// rules finds the rules of the packet filter, as one item: they are removed in one
// transaction per packet filter.
func (s *search) rules(ctx context.Context) ([]Item, error) {
	if !s.Rules.Possible {
		return nil, nil
	}
	target := s.RulesTarget()
	fw := netfilter.Open(s.Host, s.Filters)
	plan, err := netfilter.Find(ctx, fw, target)
	if plan.Empty() || err != nil {
		return nil, err
	}
	// Finding the owners of the addresses takes reading all records, so it is done only
	// if something is left.
	if target.InUse, err = s.InUse(); err != nil {
		return nil, err
	}
	if plan, err = netfilter.Find(ctx, fw, target); plan.Empty() || err != nil {
		return nil, err
	}
	return []Item{ruleItem{plan}}, nil
}

// RulesTarget is the target as the packet filters are searched for it.
func (t *Target) RulesTarget() netfilter.Target {
	var inNetwork func(netip.Prefix) (bool, error)
	if t.Others != nil {
		inNetwork = t.Others.InNetwork
	}
	return netfilter.Target{
		Owner: t.Owner, Subnets: t.Subnets, InNetwork: inNetwork,
		Addresses: t.Addresses, Ports: t.Rules.Ports, Thorough: t.How.Thorough, Siblings: t.Siblings, Own: t.Own,
	}
}

// leaveSubnets deletes the rules of subnets that nobody needs any more. It goes before the
// search for leftovers, and looks at fewer records: of many attachments that leave at once,
// the last one reads all records, and the others find no rules any more.
func (t *Target) leaveSubnets(ctx context.Context) {
	if !t.Rules.Possible || t.How.FilesOnly || t.Host == nil {
		return
	}
	// Somebody who has stopped may hold the lock. Find needs it only for the last attachment.
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := netfilter.Open(t.Host, t.Filters).LeaveSubnets(ctx, t.RulesTarget()); err == nil {
		t.Subnets = nil // done; after an error, Find searches again and returns the error
	}
}

// ruleItem is the rules of the target.
type ruleItem struct{ plan netfilter.Plan }

func (r ruleItem) String() string                   { return strings.TrimSuffix(r.plan.String(), "\n") }
func (r ruleItem) Remove(ctx context.Context) error { return r.plan.Apply(ctx) }

package leftovers

import (
	"context"
	"strings"
	"time"

	"github.com/embedcni/cni/internal/kernel/netfilter"
)

// rules finds the rules of the packet filter, as one item: they are removed in one
// transaction per packet filter.
func (t *Target) rules(ctx context.Context) ([]Item, error) {
	if !t.Footprint.Rules.Possible {
		return nil, nil
	}
	target := t.rulesTarget()
	fw := netfilter.Open(t.Host, t.Filters)
	plan, err := netfilter.Find(ctx, fw, target)
	if plan.Empty() || err != nil {
		return nil, err
	}
	// Finding the owners of the addresses takes reading all records, so it is done only
	// if something is left.
	if target.InUse, err = t.InUse(); err != nil {
		return nil, err
	}
	if plan, err = netfilter.Find(ctx, fw, target); plan.Empty() || err != nil {
		return nil, err
	}
	return []Item{{strings.TrimSuffix(plan.String(), "\n"), plan.Apply}}, nil
}

// rulesTarget is the target as the packet filters are searched for it.
func (t *Target) rulesTarget() netfilter.Target {
	return netfilter.Target{
		Owner: t.Footprint.Owner, Subnets: t.Footprint.Subnets, InNetwork: t.Others.InNetwork,
		Addresses: t.Footprint.Addresses, Ports: t.Footprint.Rules.Ports, Thorough: t.How.Thorough, Siblings: t.Siblings, Own: t.Own,
	}
}

// leaveSubnets deletes the rules of subnets that nobody needs any more. It goes before the
// search for leftovers, and looks at fewer records: of many attachments that leave at once,
// the last one reads all records, and the others find no rules any more.
func (t *Target) leaveSubnets(ctx context.Context) {
	if !t.Footprint.Rules.Possible || t.How.FilesOnly || t.Host == nil {
		return
	}
	// Somebody who has stopped may hold the lock. Find needs it only for the last attachment.
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := netfilter.Open(t.Host, t.Filters).LeaveSubnets(ctx, t.rulesTarget()); err == nil {
		t.Footprint.Subnets = nil // done; after an error, Find searches again and returns the error
	}
}

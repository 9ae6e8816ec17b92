package netfilter

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/nft"
)

// LeaveSubnets deletes the rules of those of the target's subnets that nobody needs any
// more. An attachment that leaves them calls it after [Leave]: of several that leave at
// once, the last to note that finds the others gone. Only one at a time asks who needs the
// subnets, and only while there are rules, because that can take reading all records.
func (fw *Firewalls) LeaveSubnets(ctx context.Context, t fwrules.Target) error {
	t, err := t.Normal()
	if err != nil {
		return err
	}
	return fw.eachLeft(t, func(d deserted) error {
		d.needed = func(netip.Prefix) (bool, error) { return false, nil }
		there, _, err := d.rules(ctx)
		if len(there) == 0 || err != nil {
			return err
		}
		d.needed = t.InNetwork
		return d.Apply(ctx)
	})
}

// findForwarding returns the rules of a target's subnets that nobody needs any more.
func (fw *Firewalls) findForwarding(ctx context.Context, t fwrules.Target) (all []fwrules.Found, err error) {
	err = fw.eachLeft(t, func(d deserted) (err error) {
		if d.found, _, err = d.rules(ctx); len(d.found) > 0 {
			all = append(all, d)
		}
		return err
	})
	return all, err
}

// eachLeft calls do with the target's subnets in each variant and family, until it fails.
func (fw *Firewalls) eachLeft(t fwrules.Target, do func(deserted) error) error {
	for _, tool := range iptables.Variants(fw.sockets, fw.Held) {
		subnets := inFamily(tool, t.Subnets)
		if len(subnets) == 0 {
			continue
		}
		if _, err := fw.statRecords(); err != nil {
			return err
		}
		if err := do(deserted{fw: fw, tool: tool, subnets: subnets, needed: t.InNetwork}); err != nil {
			return err
		}
	}
	return nil
}

// deserted are subnets that an attachment leaves, in one variant and family.
type deserted struct {
	fw      *Firewalls
	tool    iptables.Tool
	subnets []netip.Prefix
	needed  func(netip.Prefix) (bool, error)
	found   []acceptRule
}

// Lines implements [fwrules.Found].
func (d deserted) Lines() (lines []string) {
	for _, r := range d.found {
		lines = append(lines, fmt.Sprintf("%s -t %s -D %s %s", d.tool.Name(), tableFilter, chainForward, r))
	}
	return lines
}

// rules returns the rules that are there and that nobody needs. It asks about a subnet only
// if it has rules, because that can take reading all records.
func (d deserted) rules(ctx context.Context) (rules []acceptRule, now forwarding, err error) {
	if now, err = readForwarding(ctx, d.tool); err != nil {
		return nil, now, err
	}
	for _, subnet := range d.subnets {
		there := slices.DeleteFunc(d.fw.acceptRules(subnet), func(r acceptRule) bool { return len(now.accepts[r.comment]) == 0 })
		if len(there) == 0 {
			continue
		}
		if needed, err := d.needed(subnet); err != nil {
			return nil, now, err
		} else if !needed {
			rules = append(rules, there...)
		}
	}
	return rules, now, nil
}

// Apply deletes the rules that still nobody needs. It asks about each subnet once: that can
// take reading all records, and other rules of the host may change all the time.
func (d deserted) Apply(ctx context.Context) (err error) {
	unlock, err := iptables.LockNamespace(ctx, d.fw.sockets.NS, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	ask, answers := d.needed, make(map[netip.Prefix]bool)
	d.needed = func(subnet netip.Prefix) (bool, error) {
		if needed, known := answers[subnet]; known {
			return needed, nil
		}
		needed, err := ask(subnet)
		if err == nil {
			answers[subnet] = needed // an ADD notes its subnets under the shared lock
		}
		return needed, err
	}
	return nft.In(d.fw.sockets.NS, func() error {
		if d.tool.Legacy {
			return d.deleteByProcess(ctx)
		}
		return nft.UntilUnchanged(ctx, func() error { return d.deleteHandles(ctx) })
	})
}

// deleteHandles deletes the rules in one transaction. The handles are of the rules that
// are there, as long as nothing changes.
func (d deserted) deleteHandles(ctx context.Context) (err error) {
	var generation uint32
	err = d.tool.Sockets.Do(ctx, func(c *nft.Conn) error {
		generation, err = c.Generation()
		return err
	})
	if err != nil {
		return err
	}
	rules, now, err := d.rules(ctx)
	if err != nil {
		return err
	}
	var objects []nft.Object
	for _, r := range rules {
		for _, handle := range now.accepts[r.comment] {
			objects = append(objects, nft.Object{Table: d.tool.Table(tableFilter), Chain: chainForward, Handle: handle, Comment: r.comment})
		}
	}
	if len(objects) == 0 {
		return nil
	}
	return d.tool.Sockets.Do(ctx, func(c *nft.Conn) error { return c.Delete(generation, objects) })
}

// deleteByProcess deletes the rules from a legacy table.
func (d deserted) deleteByProcess(ctx context.Context) error {
	rules, now, err := d.rules(ctx)
	if err != nil {
		return err
	}
	x, err := openTool(ctx, d.tool)
	if err != nil {
		return err
	}
	for _, r := range rules {
		for range now.accepts[r.comment] {
			if err := x.DeleteIfExists(tableFilter, chainForward, r.words()...); err != nil {
				return fmt.Errorf("%s: delete a rule of %v: %w", d.tool.Name(), r.subnet, err)
			}
		}
	}
	return nil
}

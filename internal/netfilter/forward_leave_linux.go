package netfilter

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/nft"
)

// LeaveSubnets deletes the rules of those of the target's subnets that nobody needs any
// more. An attachment that leaves them calls it after [Leave]: of several that leave at
// once, the last to note that finds the others gone. Only one at a time asks who needs the
// subnets, and only while there are rules, because that can take reading all records.
func (fw *Firewalls) LeaveSubnets(ctx context.Context, t Target) error {
	t, err := t.Normal()
	if err != nil {
		return err
	}
	there := t
	there.InNetwork = nobodyNeeds
	return fw.eachLeft(ctx, t, func(now forwarding) error {
		if rules, err := fw.unneeded(now, there); len(rules) == 0 || err != nil {
			return err
		}
		return fw.deleteAccepts(ctx, now.Tool, t)
	})
}

// findForwarding returns the rules of a target's subnets that nobody needs any more.
func (fw *Firewalls) findForwarding(ctx context.Context, t Target) (all []found, err error) {
	err = fw.eachLeft(ctx, t, func(now forwarding) error {
		rules, err := fw.unneeded(now, t)
		var lines []string
		for _, r := range rules {
			lines = append(lines, fmt.Sprintf("%s -t %s -D %s %s", now.Name(), tableFilter, chainForward, r))
		}
		if len(lines) > 0 {
			all = append(all, found{lines, func(ctx context.Context) error { return fw.deleteAccepts(ctx, now.Tool, t) }})
		}
		return err
	})
	return all, err
}

// eachLeft calls do with each variant and family that can have rules of the target's
// subnets, until it fails.
func (fw *Firewalls) eachLeft(ctx context.Context, t Target, do func(forwarding) error) error {
	for _, tool := range iptables.Variants(fw.sockets, fw.Held) {
		if len(inFamily(tool.V6(), t.Subnets)) == 0 {
			continue
		}
		if _, err := fw.statRecords(); err != nil {
			return err
		}
		now, err := readForwarding(ctx, tool)
		if err == nil {
			err = do(now)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// unneeded returns the rules of the target's subnets that are there and that nobody needs. It
// asks about a subnet only if it has rules, and once.
func (fw *Firewalls) unneeded(now forwarding, t Target) (rules []acceptRule, err error) {
	for _, subnet := range inFamily(now.V6(), t.Subnets) {
		there := slices.DeleteFunc(fw.acceptRules(subnet), func(r acceptRule) bool { return len(now.accepts[r.comment]) == 0 })
		if len(there) == 0 {
			continue
		}
		if needed, err := t.InNetwork(subnet); err != nil {
			return nil, err
		} else if !needed {
			rules = append(rules, there...)
		}
	}
	return rules, nil
}

// deleteAccepts deletes the rules that still nobody needs. It asks before it looks at what is
// to be deleted: that can take reading all records, and other rules of the host may change
// all the time.
func (fw *Firewalls) deleteAccepts(ctx context.Context, tool iptables.Tool, t Target) (err error) {
	unlock, err := iptables.LockNamespace(ctx, fw.sockets.NS, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	now, err := readForwarding(ctx, tool)
	if err != nil {
		return err
	}
	rules, err := fw.unneeded(now, t)
	if err != nil || len(rules) == 0 {
		return err
	}
	if tool.Legacy {
		return fw.in(func() error { return now.deleteByProcess(ctx, rules) })
	}
	return tool.Sockets.Do(ctx, func(c *nft.Conn) error { return deleteHandles(ctx, c, tool, rules) })
}

// deleteHandles deletes the rules in one transaction. The handles are of the rules that
// are there, as long as nothing changes.
func deleteHandles(ctx context.Context, c *nft.Conn, tool iptables.Tool, rules []acceptRule) error {
	return c.Change(ctx, func() (msgs []nft.Message, generation uint32, err error) {
		if generation, err = c.Generation(); err != nil {
			return nil, 0, err
		}
		now, err := readForwarding(ctx, tool)
		for _, r := range rules {
			for _, handle := range now.accepts[r.comment] {
				msgs = append(msgs, nft.Object{Table: tool.Table(tableFilter), Chain: chainForward, Handle: handle, Comment: r.comment}.Deletion())
			}
		}
		return msgs, generation, err
	})
}

// deleteByProcess deletes the rules from a legacy table.
func (f forwarding) deleteByProcess(ctx context.Context, rules []acceptRule) error {
	x, err := openTool(ctx, f.Tool)
	if err != nil {
		return err
	}
	for _, r := range rules {
		for range f.accepts[r.comment] {
			if err := x.DeleteIfExists(tableFilter, chainForward, r.words()...); err != nil {
				return fmt.Errorf("%s: delete a rule of %v: %w", f.Name(), r.subnet, err)
			}
		}
	}
	return nil
}

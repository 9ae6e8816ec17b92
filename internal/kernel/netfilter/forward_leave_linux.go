package netfilter

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/embedcni/cni/internal/kernel/iptables"
	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/nft"
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
	there, err := fw.findForwarding(ctx, t, nobodyNeeds)
	return joined.Errors(err, Plan{there}.Apply(ctx))
}

// findForwarding returns the rules of a target's subnets of which needed is false. They are
// deleted if nobody needs them by then.
func (fw *Firewalls) findForwarding(ctx context.Context, t Target, needed func(netip.Prefix) (bool, error)) (all []found, err error) {
	for _, tool := range iptables.Variants(fw.sockets, fw.Held) {
		subnets := inFamily(tool.V6(), t.Subnets)
		if len(subnets) == 0 {
			continue
		}
		own, err := fw.accepts()
		if err != nil {
			return all, err
		}
		_, rules, err := own.unneeded(ctx, tool, subnets, needed)
		if err != nil {
			return all, err
		}
		var lines []string
		for _, r := range rules {
			lines = append(lines, fmt.Sprintf("%s -t %s -D %s %s", tool.Name(), tableFilter, chainForward, r))
		}
		if len(lines) > 0 {
			all = append(all, found{lines, func(ctx context.Context) error { return own.delete(ctx, tool, subnets, t.InNetwork) }})
		}
	}
	return all, nil
}

// unneeded returns what a tool's chains have, and of it the rules of the subnets that nobody
// needs. It asks about a subnet only if it has rules, and once.
func (a accepts) unneeded(ctx context.Context, tool iptables.Tool, subnets []netip.Prefix, needed func(netip.Prefix) (bool, error)) (now forwarding, rules []acceptRule, err error) {
	if now, err = readForwarding(ctx, tool); err != nil {
		return now, nil, err
	}
	for _, subnet := range subnets {
		there := slices.DeleteFunc(a.rules(subnet), func(r acceptRule) bool { return len(now.accepts[r.comment]) == 0 })
		if len(there) == 0 {
			continue
		}
		if needed, err := needed(subnet); err != nil {
			return now, nil, err
		} else if !needed {
			rules = append(rules, there...)
		}
	}
	return now, rules, nil
}

// delete deletes the rules that still nobody needs. It asks before it looks at what is to be
// deleted: that can take reading all records, and other rules of the host may change all the
// time.
func (a accepts) delete(ctx context.Context, tool iptables.Tool, subnets []netip.Prefix, needed func(netip.Prefix) (bool, error)) (err error) {
	unlock, err := iptables.LockNamespace(ctx, a.sockets.NS, true)
	if err != nil {
		return err
	}
	defer func() { err = joined.Errors(err, unlock()) }()
	now, rules, err := a.unneeded(ctx, tool, subnets, needed)
	if err != nil || len(rules) == 0 {
		return err
	}
	if tool.Legacy {
		var commands []command
		for _, r := range rules {
			for range now.accepts[r.comment] {
				commands = append(commands, command{iptables.ChainID{Table: tableFilter, Chain: chainForward}, "-D", r.String()})
			}
		}
		return nft.In(a.sockets.NS, func() error { return restore(ctx, tool, commands) })
	}
	return removal{a.sockets, func(*nft.Conn) (objects []object, err error) {
		now, err := readForwarding(ctx, tool) // the handles are of the rules that are there now
		for _, r := range rules {
			for _, handle := range now.accepts[r.comment] {
				objects = append(objects, nft.Object{Table: tool.Table(tableFilter), Chain: chainForward, Handle: handle, Comment: r.comment})
			}
		}
		return objects, err
	}}.run(ctx)
}

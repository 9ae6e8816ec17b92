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

// findForwarding returns the rules of a target's subnets that nobody needs any more.
func (fw *Firewalls) findForwarding(ctx context.Context, t fwrules.Target) (all []fwrules.Found, err error) {
	if len(t.Subnets) == 0 {
		return nil, nil
	}
	if _, err := fw.statRecords(); err != nil {
		return nil, err
	}
	for _, tool := range iptables.Variants(fw.sockets, fw.Held) {
		now, err := readForwarding(ctx, tool)
		if err != nil {
			return all, err
		}
		left := foundForwarding{fw: fw, tool: tool, inNetwork: t.InNetwork}
		for _, subnet := range inFamily(tool, t.Subnets) {
			if !slices.ContainsFunc(fw.acceptRules(subnet), func(r acceptRule) bool { return len(now.accepts[r.comment]) > 0 }) {
				continue
			}
			needed, err := t.InNetwork(subnet)
			if err != nil {
				return all, err
			}
			if !needed {
				left.subnets = append(left.subnets, subnet)
			}
		}
		if len(left.subnets) > 0 {
			all = append(all, left)
		}
	}
	return all, nil
}

// foundForwarding are the rules of subnets in one variant and family.
type foundForwarding struct {
	fw        *Firewalls
	tool      iptables.Tool
	subnets   []netip.Prefix
	inNetwork func(netip.Prefix) (bool, error)
}

// Lines implements [fwrules.Found].
func (f foundForwarding) Lines() (lines []string) {
	for _, subnet := range f.subnets {
		for _, r := range f.fw.acceptRules(subnet) {
			lines = append(lines, fmt.Sprintf("%s -t %s -D %s %s", f.tool.Name(), tableFilter, chainForward, r))
		}
	}
	return lines
}

// Apply deletes the rules of those subnets that still nobody needs.
func (f foundForwarding) Apply(ctx context.Context) (err error) {
	unlock, err := iptables.LockNamespace(ctx, f.fw.sockets.NS, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	return nft.In(f.fw.sockets.NS, func() error {
		if f.tool.Legacy {
			return f.deleteByProcess(ctx)
		}
		return nft.UntilUnchanged(ctx, func() error { return f.deleteHandles(ctx) })
	})
}

// unneeded calls fn for each rule of the subnets that nobody needs.
func (f foundForwarding) unneeded(fn func(acceptRule) error) error {
	for _, subnet := range f.subnets {
		needed, err := f.inNetwork(subnet)
		if err != nil {
			return err
		}
		if needed {
			continue
		}
		for _, r := range f.fw.acceptRules(subnet) {
			if err := fn(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// deleteHandles deletes the rules in one transaction. The handles are of the rules that
// are there, as long as nothing changes.
func (f foundForwarding) deleteHandles(ctx context.Context) (err error) {
	var generation uint32
	err = f.tool.Sockets.Do(ctx, func(c *nft.Conn) error {
		generation, err = c.Generation()
		return err
	})
	if err != nil {
		return err
	}
	now, err := readForwarding(ctx, f.tool)
	if err != nil {
		return err
	}
	var rules []nft.Object
	err = f.unneeded(func(r acceptRule) error {
		for _, handle := range now.accepts[r.comment] {
			rules = append(rules, nft.Object{Table: f.tool.Table(tableFilter), Chain: chainForward, Handle: handle, Comment: r.comment})
		}
		return nil
	})
	if err != nil || len(rules) == 0 {
		return err
	}
	return f.tool.Sockets.Do(ctx, func(c *nft.Conn) error { return c.Delete(generation, rules) })
}

// deleteByProcess deletes the rules from a legacy table.
func (f foundForwarding) deleteByProcess(ctx context.Context) error {
	now, err := readForwarding(ctx, f.tool)
	if err != nil {
		return err
	}
	x, err := openTool(ctx, f.tool)
	if err != nil {
		return err
	}
	return f.unneeded(func(r acceptRule) error {
		for range now.accepts[r.comment] {
			if err := x.DeleteIfExists(tableFilter, chainForward, r.words()...); err != nil {
				return fmt.Errorf("%s: delete a rule of %v: %w", f.tool.Name(), r.subnet, err)
			}
		}
		return nil
	})
}

package reference

import (
	"context"
	"errors"
	"fmt"

	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/nft"
)

// findSaved returns the rules of the target in iptables, by variant and family.
func (f Form) findSaved(ctx context.Context, t fwrules.Target) (all []fwrules.Found, err error) {
	everything := footprint{t}
	err = f.in(func() error {
		var errs []error
		for _, tool := range f.tools() {
			if f.hasNothing(ctx, tool, everything) {
				continue
			}
			commands, err := tool.find(ctx, everything)
			errs = append(errs, err)
			if len(commands) > 0 {
				all = append(all, saved{f, deletions{tool, commands}})
			}
		}
		return errors.Join(errs...)
	})
	return all, err
}

// hasNothing reports whether the kernel's listing shows that the tool has no rule of the
// target, as after a DEL. Otherwise the tool is asked, which also explains an error.
func (f Form) hasNothing(ctx context.Context, t tool, all footprint) bool {
	if t.legacy || f.fakes != nil {
		return false
	}
	family := uint8(nft.FamilyIPv4)
	if t.v6 {
		family = nft.FamilyIPv6
	}
	var chains []nft.Chain
	for _, c := range all.Chains() {
		chains = append(chains, nft.Chain{Table: tableNAT, Name: c.Name})
	}
	var addrs [][]byte
	for _, a := range all.forward(t.v6) {
		addrs = append(addrs, a.AsSlice())
	}
	nothing := true
	err := f.Sockets.Do(ctx, func(c *nft.Conn) error {
		return nft.UntilUnchanged(ctx, func() error {
			_, exist, err := c.Exist(family, chains...)
			for _, one := range exist {
				nothing = nothing && !one
			}
			if err != nil || !nothing || len(addrs) == 0 {
				return err
			}
			return c.Rules(nft.Table{Family: family, Name: tableFilter}, chainForward, addrs, func(nft.Rule) error {
				nothing = false
				return nft.ErrStop
			})
		})
	})
	return err == nil && nothing
}

// saved are rules and chains of a target in one variant and family.
type saved struct {
	form Form
	deletions
}

// Lines returns a command of the tool for each.
func (w saved) Lines() []string {
	var lines []string
	for _, c := range w.commands {
		lines = append(lines, fmt.Sprintf("%s -t %s %v", w.tool.Name(), c.Table, c))
	}
	return lines
}

// Apply deletes the rules and chains.
func (w saved) Apply(ctx context.Context) error {
	return w.form.in(func() error { return w.apply(ctx) })
}

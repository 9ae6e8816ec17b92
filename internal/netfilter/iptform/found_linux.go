package iptform

import (
	"context"
	"errors"
	"fmt"

	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/nft"
)

// tool is a variant of iptables for one family.
type tool struct {
	xtables
	v6, legacy bool
}

// tools are both variants of both families.
func (f Form) tools() []tool {
	if f.fakes != nil {
		return f.fakes
	}
	var all []tool
	for _, v6 := range []bool{false, true} {
		for _, legacy := range []bool{false, true} {
			all = append(all, tool{f.maker(v6, legacy).Tool, v6, legacy})
		}
	}
	return all
}

// Find returns the rules of the target that exist, by variant and family.
func (f Form) Find(ctx context.Context, t fwrules.Target) (all []fwrules.Found, err error) {
	everything, err := whole(t)
	if err != nil {
		return nil, err
	}
	err = f.in(func() error {
		var errs []error
		for _, tool := range f.tools() {
			if f.hasNothing(ctx, tool, everything) {
				continue
			}
			commands, err := tool.find(ctx, everything)
			errs = append(errs, err)
			if len(commands) > 0 {
				all = append(all, Found{f, deletions{tool, commands}})
			}
		}
		return errors.Join(errs...)
	})
	return all, err
}

// hasNothing reports whether the kernel's listing shows that the tool has no rule of the
// target, as after a DEL. Otherwise the tool is asked, which also explains an error.
func (f Form) hasNothing(ctx context.Context, t tool, all footprint) bool {
	// In chains that a sibling keeps, rules of the target are known by their addresses alone.
	if t.legacy || f.fakes != nil || all.LastOnBridge != "" || len(all.divide(t.v6).kept.chains) > 0 {
		return false
	}
	nothing := false
	err := f.Sockets.Do(ctx, func(c *nft.Conn) error {
		return nft.UntilUnchanged(ctx, func() error {
			objects, sure, err := all.findIn(c, f.maker(t.v6, false).family())
			nothing = sure && len(objects) == 0
			return err
		})
	})
	return err == nil && nothing
}

// Found are rules and chains of a target in one variant and family.
type Found struct {
	form Form
	deletions
}

// Lines returns a command of the tool for each.
func (w Found) Lines() []string {
	var lines []string
	for _, c := range w.commands {
		lines = append(lines, fmt.Sprintf("%s -t %s %v", w.tool.Name(), c.Table, c))
	}
	return lines
}

// Apply deletes the rules and chains.
func (w Found) Apply(ctx context.Context) error {
	return w.form.in(func() error { return w.apply(ctx) })
}

// Intact reports whether all of them still exist.
func (w Found) Intact(ctx context.Context) (yes bool, err error) {
	err = w.form.in(func() error {
		left, err := w.left(ctx)
		yes = len(left) == len(w.commands)
		return err
	})
	return yes, err
}

// Legacy reports whether they are of the legacy variant.
func (w Found) Legacy() bool { return w.tool.legacy }

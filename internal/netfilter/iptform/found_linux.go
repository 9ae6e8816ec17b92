package iptform

import (
	"context"
	"errors"
	"fmt"

	"github.com/embedcni/cni/internal/netfilter/fwrules"
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

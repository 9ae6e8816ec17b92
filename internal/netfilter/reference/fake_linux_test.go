package reference

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
)

// fakeTool is an iptables that holds its rules itself.
type fakeTool struct {
	tool      string
	sets      []ruleset
	saveErr   error
	onRestore func(*fakeTool) // called before a restore, e.g. to interfere
	restored  []string
}

// newFakeTool makes one that holds the output of iptables-save.
func newFakeTool(tool, saved string) *fakeTool {
	parsed, err := iptables.ParseSave(saved)
	if err != nil {
		panic(err)
	}
	var sets []ruleset
	for _, set := range parsed {
		sets = append(sets, ruleset{set})
	}
	return &fakeTool{tool: tool, sets: sets}
}

func (f *fakeTool) Name() string { return f.tool }

func (f *fakeTool) Save(ctx context.Context, chains []iptables.ChainID) (string, error) {
	if err := errors.Join(ctx.Err(), f.saveErr); err != nil {
		return "", err
	}
	if !slices.ContainsFunc(chains, func(id iptables.ChainID) bool {
		return slices.ContainsFunc(f.sets, func(s ruleset) bool { return s.Table == id.Table && s.Chains[id.Chain] })
	}) {
		return "", nil
	}
	return f.text(), nil
}

// text returns the output of iptables-save.
func (f *fakeTool) text() string {
	var b strings.Builder
	for _, s := range f.sets {
		b.WriteString("*" + s.Table + "\n")
		var names []string
		for name := range s.Chains {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			b.WriteString(":" + name + " - [0:0]\n")
		}
		for _, r := range s.Rules {
			b.WriteString("-A " + r.Chain + " " + r.Spec + "\n")
		}
		b.WriteString("COMMIT\n")
	}
	return b.String()
}

func (f *fakeTool) Restore(ctx context.Context, text string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if f.onRestore != nil {
		f.onRestore(f)
	}
	f.restored = append(f.restored, text)
	var draft *ruleset
	for n, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		fail := func(err error) error { return fmt.Errorf("line %d failed: %w", n+1, err) }
		switch {
		case line == "COMMIT":
			i := slices.IndexFunc(f.sets, func(s ruleset) bool { return s.Table == draft.Table })
			f.sets[i] = *draft
		case line[0] == '*':
			i := slices.IndexFunc(f.sets, func(s ruleset) bool { return s.Table == line[1:] })
			if i < 0 {
				return fail(unix.ENOENT)
			}
			draft = &ruleset{iptables.Ruleset{Table: line[1:], Chains: make(map[string]bool), Rules: slices.Clone(f.sets[i].Rules)}}
			for c := range f.sets[i].Chains {
				draft.Chains[c] = true
			}
		default:
			if err := draft.run(line); err != nil {
				return fail(err)
			}
		}
	}
	return nil
}

// run executes a line of iptables-restore.
func (s *ruleset) run(line string) error {
	verb, rest, _ := strings.Cut(line, " ")
	chain, spec, _ := strings.Cut(rest, " ")
	if !s.Chains[chain] {
		return unix.ENOENT
	}
	inside := func(r iptables.Rule) bool { return r.Chain == chain }
	switch verb {
	case "-D":
		i := slices.IndexFunc(s.Rules, func(r iptables.Rule) bool { return inside(r) && r.Spec == spec })
		if i < 0 {
			return unix.ENOENT
		}
		s.Rules = slices.Delete(s.Rules, i, i+1)
	case "-F":
		s.Rules = slices.DeleteFunc(s.Rules, inside)
	case "-X":
		if slices.ContainsFunc(s.Rules, func(r iptables.Rule) bool { return inside(r) || r.JumpsTo(chain) }) {
			return unix.EBUSY
		}
		delete(s.Chains, chain)
	default:
		return unix.EINVAL
	}
	return nil
}

// plan is everything that was found.
type plan []fwrules.Found

func find(t *testing.T, target fwrules.Target, tools ...*fakeTool) (plan, error) {
	t.Helper()
	fakes := []tool{}
	for _, f := range tools {
		fakes = append(fakes, tool{f, strings.HasPrefix(f.tool, "ip6"), strings.HasSuffix(f.tool, "-legacy")})
	}
	target, err := target.Normal()
	if err != nil {
		t.Fatal(err)
	}
	return Form{fakes: fakes}.findSaved(t.Context(), target)
}

func (p plan) text() string {
	var b strings.Builder
	for _, f := range p {
		b.WriteString(strings.Join(f.Lines(), "\n") + "\n")
	}
	return b.String()
}

func (p plan) Apply(ctx context.Context) error {
	var errs []error
	for _, f := range p {
		errs = append(errs, f.Apply(ctx))
	}
	return errors.Join(errs...)
}

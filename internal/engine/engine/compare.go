package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/internal/run/runner"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/outcome"
)

// comparing is an attachment that is compared with its record.
type comparing struct {
	Params        *chain.Attachment // of its plugins
	Chain         *chain.Chain      // of its plugins, of which none runs
	Result        chain.Partial     // of the ADD; nil if it is not known
	Runner        *runner.Runner
	MadeInterface bool                             // the ADD has made an interface in the container
	Describe      func(contract.Difference) string // a line for people
}

// Compare compares the parts of the attachment's plugins with the kernel, by those
// built-in plugins that can. It changes nothing. The error is the reason why nothing
// could be compared; the comparison then has the names alone.
func (a *comparing) Compare(ctx context.Context, v *contract.View) (*comparison, error) {
	p := &comparison{Network: a.Chain.List.Name, IfName: a.Params.IfName}
	gone, err := a.missing(v)
	if err != nil {
		return p, err
	}
	if gone != nil {
		p.Differences = append(p.Differences, *gone)
	}
	p.Asks = make(map[int]bool)
	r := *a.Runner
	r.Given.Record = readOnly{r.Given.Record}
	calls := a.Chain.CheckCalls(a.Params, a.Result)
	for i, plugin := range a.Chain.List.Plugins {
		call, unknown := calls(i)
		types := []string{plugin.Network.Type}
		if plugin.Network.IPAM.Type != "" {
			types = append(types, plugin.Network.IPAM.Type)
		}
		for n, typ := range types {
			p.Asks[i] = p.Asks[i] || gone == nil && !r.Plugins.IsOurs(typ)
			if !a.compareOne(ctx, &r, v, typ, p, call, unknown) {
				// The configuration that a plugin of another program passes to its IPAM
				// plugin is not known either.
				if p.Asks[i] = gone == nil; gone == nil {
					p.Uncompared = append(p.Uncompared, types[n:]...)
				}
				break
			}
		}
	}
	return p, nil
}

// needsAnADD is why an interface in a container is not repaired.
const needsAnADD = "only an ADD makes it, and the specification requires a DEL before that: Remove and Setup attach the container again"

// missing returns the difference if the container lacks the attachment's interface.
func (a *comparing) missing(v *contract.View) (*contract.Difference, error) {
	if !a.MadeInterface { // an interface that was never made cannot be missing
		return nil, nil
	}
	there, err := v.HasLink(a.Params.IfName)
	if there || err != nil {
		return nil, err
	}
	return &contract.Difference{
		Plugin: a.Chain.List.Plugins[0].Network.Type, Kind: contract.Interface, Inside: true, Object: a.Params.IfName, Why: needsAnADD,
		Err: fmt.Errorf("interface %s of network %q is gone: %w", a.Params.IfName, a.Chain.List.Name, outcome.ErrNotAttached),
	}, nil
}

// isInterface reports whether a difference is that the container lacks an interface.
func isInterface(d contract.Difference, ifName string) bool {
	return d.Kind == contract.Interface && d.Inside && d.Object == ifName && d.Found == ""
}

// compareOne compares the part of one plugin by its call for CHECK, unless err is why there
// is none. It reports whether a built-in plugin could.
func (a *comparing) compareOne(ctx context.Context, r *runner.Runner, v *contract.View, typ string, p *comparison, call chain.Call, err error) bool {
	if !a.Chain.ListsInterfaces() {
		return false // the result does not say what to compare
	}
	var found []contract.Difference
	ok := true
	if err == nil {
		call.Plugin = typ
		found, ok, err = r.Compare(ctx, call, v)
	}
	if err != nil {
		p.fail(r.Different(typ, fmt.Errorf("not compared: %w", err)))
	}
	for _, d := range found {
		if isInterface(d, a.Params.IfName) && len(p.Differences) > 0 && isInterface(p.Differences[0], a.Params.IfName) {
			continue // missing has found it
		}
		if d.Err == nil { // CHECK passes over it
			d.Err = errors.New(a.Describe(d))
		}
		d.Err = r.Different(typ, d.Err)
		p.Differences = append(p.Differences, d)
	}
	return ok
}

// fail notes why a part could not be compared. A single error stays as it is.
func (p *comparison) fail(err error) {
	if p.Err != nil {
		err = joined.Errors(p.Err, err)
	}
	p.Err = err
}

// errReadOnly: a comparison changes nothing.
var errReadOnly = errors.New("a comparison notes nothing")

// readOnly is a record for a comparison, which must not change it.
type readOnly struct{ contract.Record }

// Note refuses a note.
func (readOnly) Note(string, any) error { return errReadOnly }

// stateCompared is the state of a container on which there is no verdict yet: its parts decide.
const stateCompared outcome.HealthState = ""

// examined is a container that was looked at. It was not locked meanwhile, so a look
// only suspects; see [examination.all].
type examined struct {
	Found   record.Found // its record
	State   outcome.HealthState
	Reason  error // for a State that is not stateCompared
	Parts   []*comparison
	Settled bool // it is certain that no other call has changed the container meanwhile
}

// Suspect reports whether anything is wrong with the container, as far as was seen.
func (c *examined) Suspect() bool {
	return c.State != stateCompared || slices.ContainsFunc(c.Parts, func(p *comparison) bool { return !p.IsWhole() })
}

// IsRepairable reports whether a repair can make a part on the host again.
func (c *examined) IsRepairable() bool {
	return slices.ContainsFunc(c.Parts, func(p *comparison) bool {
		return slices.ContainsFunc(p.Differences, func(d contract.Difference) bool { return d.Fix != nil && !d.Inside })
	})
}

// WantsCheck reports whether a CHECK can say more about a part than the comparison.
func (c *examined) WantsCheck() bool { return slices.ContainsFunc(c.Parts, (*comparison).WantsCheck) }

// comparison is an attachment compared with its record.
type comparison struct {
	Network, IfName string

	Differences []contract.Difference // in the order in which they have to be made again
	Asks        map[int]bool          // positions of the plugins whose CHECK can say more
	Uncompared  []string              // types whose part nothing compares
	Err         error                 // why a part could not be compared
	Asked       answers
}

// answers is the outcome of the CHECKs of an attachment's plugins.
type answers struct {
	Done    bool
	Failed  error // of the plugin that said that something is wrong
	Unknown error // why no plugin said anything
	Blind   error // of the plugins whose CHECK fails for healthy containers too
	Noted   error // of the plugins whose CHECK fails over something that does not matter
}

// Covers reports whether the comparison covers the parts of these types.
func (p *comparison) Covers(types ...string) bool {
	return !slices.ContainsFunc(types, func(typ string) bool { return slices.Contains(p.Uncompared, typ) })
}

// IsWhole reports whether the comparison has found nothing wrong.
func (p *comparison) IsWhole() bool { return len(p.Differences) == 0 && p.Err == nil }

// WantsCheck reports whether a CHECK of a plugin of the attachment can say more than the
// comparison.
func (p *comparison) WantsCheck() bool {
	return slices.Contains(slices.Collect(maps.Values(p.Asks)), true)
}

// Unjudged returns the types of plugins whose part nobody has judged, because CHECK is
// not wanted.
func (p *comparison) Unjudged() []string {
	if p.Asked != (answers{}) {
		return nil
	}
	return p.Uncompared
}

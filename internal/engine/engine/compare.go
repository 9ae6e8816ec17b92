package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/embedcni/cni/internal/run/caller"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/run/compare"
	"github.com/embedcni/cni/internal/run/runner"
	"github.com/embedcni/cni/internal/store/record"
)

// comparison is of an attachment with its record.
type comparison struct {
	*chain.Attachment
	chain         *chain.Chain  // of its plugins, of which none runs
	result        chain.Partial // of the ADD; nil if it is not known
	runner        *runner.Runner
	madeInterface bool                            // the ADD has made an interface in the container
	describe      func(compare.Difference) string // a line for people
}

// parts compares the parts of the attachment's plugins with the kernel, by those
// built-in plugins that can. It changes nothing. The error is the reason why nothing
// could be compared; the part then has the names alone.
func (a *comparison) parts(ctx context.Context, v *compare.View) (*part, error) {
	p := &part{Network: a.chain.List.Name, IfName: a.IfName}
	gone, err := a.missing(v)
	if err != nil {
		return p, err
	}
	if gone != nil {
		p.Differences = append(p.Differences, *gone)
	}
	p.Asks = make(map[int]bool)
	r := *a.runner
	r.Given.Record = readOnly{r.Given.Record}
	calls := a.chain.CheckCalls(a.Attachment, a.result)
	for i, plugin := range a.chain.List.Plugins {
		call, unknown := calls(i)
		types := []string{plugin.Network.Type}
		if plugin.Network.IPAM.Type != "" {
			types = append(types, plugin.Network.IPAM.Type)
		}
		for n, typ := range types {
			p.Asks[i] = p.Asks[i] || gone == nil && !r.IsOurs(typ)
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
func (a *comparison) missing(v *compare.View) (*compare.Difference, error) {
	if !a.madeInterface { // an interface that was never made cannot be missing
		return nil, nil
	}
	there, err := v.HasLink(a.IfName)
	if there || err != nil {
		return nil, err
	}
	return &compare.Difference{
		Plugin: a.chain.List.Plugins[0].Network.Type, Kind: compare.Interface, Inside: true, Object: a.IfName, Why: needsAnADD,
		Err: fmt.Errorf("interface %s of network %q is gone: %w", a.IfName, a.chain.List.Name, ErrNotAttached),
	}, nil
}

// isInterface reports whether a difference is that the container lacks an interface.
func isInterface(d compare.Difference, ifName string) bool {
	return d.Kind == compare.Interface && d.Inside && d.Object == ifName && d.Found == ""
}

// compareOne compares the part of one plugin by its call for CHECK, unless err is why there
// is none. It reports whether a built-in plugin could.
func (a *comparison) compareOne(ctx context.Context, r *runner.Runner, v *compare.View, typ string, p *part, call chain.Call, err error) bool {
	if !a.chain.ListsInterfaces() {
		return false // the result does not say what to compare
	}
	var found []compare.Difference
	ok := true
	if err == nil {
		call.Plugin = typ
		found, ok, err = r.Compare(ctx, call, v)
	}
	if err != nil {
		p.fail(r.Different(typ, fmt.Errorf("not compared: %w", err)))
	}
	for _, d := range found {
		if isInterface(d, a.IfName) && len(p.Differences) > 0 && isInterface(p.Differences[0], a.IfName) {
			continue // missing has found it
		}
		if d.Err == nil { // CHECK passes over it
			p.settings++
			d.Err = errors.New(a.describe(d))
		}
		d.Err = r.Different(typ, d.Err)
		p.Differences = append(p.Differences, d)
	}
	return ok
}

// fail notes why a part could not be compared. A single error stays as it is.
func (p *part) fail(err error) {
	if p.Err != nil {
		err = errors.Join(p.Err, err)
	}
	p.Err = err
}

// errReadOnly: a comparison changes nothing.
var errReadOnly = errors.New("a comparison notes nothing")

// readOnly is a record for a comparison, which must not change it.
type readOnly struct{ caller.Record }

// Note refuses a note.
func (readOnly) Note(string, any) error { return errReadOnly }

// State is why a container was not compared, or the verdict on it.
type State string

const (
	stateCompared    State = "" // its parts decide
	stateUnknown     State = "unknown"
	stateGone        State = "gone" // its namespace is
	stateNotAttached State = "not attached"
	stateHealthy     State = "healthy"
	stateBroken      State = "broken"
	stateElsewhere   State = "elsewhere"
)

// examined is a container that was looked at. It was not locked meanwhile, so a look
// only suspects; see [examination.all].
type examined struct {
	Found   record.Found // its record
	State   State
	Reason  error // for a State that is not stateCompared
	Parts   []*part
	Settled bool // it is certain that no other call has changed the container meanwhile
}

// Suspect reports whether anything is wrong with the container, as far as was seen.
func (c *examined) Suspect() bool {
	return c.State != stateCompared || slices.ContainsFunc(c.Parts, func(p *part) bool { return !p.IsWhole() })
}

// Lacks reports whether something that the Setup has made is missing or different. A
// setting of the host is not: it concerns all containers at once, and nobody is the
// better for their removal.
func (c *examined) Lacks() bool {
	return slices.ContainsFunc(c.Parts, func(p *part) bool { return len(p.Differences) > p.settings })
}

// IsRepairable reports whether a repair can make a part on the host again.
func (c *examined) IsRepairable() bool {
	return slices.ContainsFunc(c.Parts, func(p *part) bool {
		return slices.ContainsFunc(p.Differences, func(d compare.Difference) bool { return d.Fix != nil && !d.Inside })
	})
}

// WantsCheck reports whether a CHECK can say more about a part than the comparison.
func (c *examined) WantsCheck() bool { return slices.ContainsFunc(c.Parts, (*part).WantsCheck) }

// part is an attachment compared with its record.
type part struct {
	Network, IfName string

	Differences []compare.Difference // in the order in which they have to be made again
	Asks        map[int]bool         // positions of the plugins whose CHECK can say more
	Uncompared  []string             // types whose part nothing compares
	Err         error                // why a part could not be compared
	Asked       checks

	settings int // how many Differences are settings of the host, which CHECK passes over
}

// checks is the outcome of the CHECKs of an attachment's plugins.
type checks struct {
	Done       bool
	Missed     bool  // another call had the container locked, or the time was used up
	Plugins    int   // that were asked
	Unanswered int   // of these, that said nothing about the container
	Failed     error // of the plugin that said that something is wrong
	Unknown    error // why no plugin said anything
	Blind      error // of the plugins whose CHECK fails for healthy containers too
	Noted      error // of the plugins whose CHECK fails over something that does not matter
}

// Covers reports whether the comparison covers the parts of these types.
func (p *part) Covers(types ...string) bool {
	return !slices.ContainsFunc(types, func(typ string) bool { return slices.Contains(p.Uncompared, typ) })
}

// IsWhole reports whether the comparison has found nothing wrong.
func (p *part) IsWhole() bool { return len(p.Differences) == 0 && p.Err == nil }

// WantsCheck reports whether a CHECK of a plugin of the attachment can say more than the
// comparison.
func (p *part) WantsCheck() bool {
	return slices.Contains(slices.Collect(maps.Values(p.Asks)), true)
}

// Unjudged returns the types of plugins whose part nobody has judged, because CHECK is
// not wanted.
func (p *part) Unjudged() []string {
	if p.Asked != (checks{}) {
		return nil
	}
	return p.Uncompared
}

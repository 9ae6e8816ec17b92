package health

import (
	"maps"
	"slices"

	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/record"
)

// State is why a container was not compared, in the words of a verdict.
type State string

const (
	Compared    State = "" // its parts decide
	Unknown     State = "unknown"
	Gone        State = "gone" // its namespace is
	NotAttached State = "not attached"
)

// Container is a container that was looked at. It was not locked meanwhile, so a look
// only suspects; see [Look.All].
type Container struct {
	Found   record.Found // its record
	State   State
	Reason  error // for a State that is not Compared
	Parts   []*Part
	Settled bool // it is certain that no other call has changed the container meanwhile
}

// Suspect reports whether anything is wrong with the container, as far as was seen.
func (c *Container) Suspect() bool {
	return c.State != Compared || slices.ContainsFunc(c.Parts, func(p *Part) bool { return !p.IsWhole() })
}

// Lacks reports whether something that the Setup has made is missing or different. A
// setting of the host is not: it concerns all containers at once, and nobody is the
// better for their removal.
func (c *Container) Lacks() bool {
	return slices.ContainsFunc(c.Parts, func(p *Part) bool { return len(p.Differences) > p.settings })
}

// IsRepairable reports whether a repair can make a part on the host again.
func (c *Container) IsRepairable() bool {
	return slices.ContainsFunc(c.Parts, func(p *Part) bool {
		return slices.ContainsFunc(p.Differences, func(d compare.Difference) bool { return d.Fix != nil && !d.Inside })
	})
}

// WantsCheck reports whether a CHECK can say more about a part than the comparison.
func (c *Container) WantsCheck() bool { return slices.ContainsFunc(c.Parts, (*Part).WantsCheck) }

// Part is an attachment compared with its record.
type Part struct {
	Network, IfName string

	Differences []compare.Difference // in the order in which they have to be made again
	Asks        map[int]bool         // positions of the plugins whose CHECK can say more
	Uncompared  []string             // types whose part nothing compares
	Err         error                // why a part could not be compared
	Asked       Asked

	settings int // how many Differences are settings of the host, which CHECK passes over
}

// Asked is the outcome of the CHECKs of an attachment's plugins.
type Asked struct {
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
func (p *Part) Covers(types ...string) bool {
	return !slices.ContainsFunc(types, func(typ string) bool { return slices.Contains(p.Uncompared, typ) })
}

// IsWhole reports whether the comparison has found nothing wrong.
func (p *Part) IsWhole() bool { return len(p.Differences) == 0 && p.Err == nil }

// WantsCheck reports whether a CHECK of a plugin of the attachment can say more than the
// comparison.
func (p *Part) WantsCheck() bool {
	return slices.Contains(slices.Collect(maps.Values(p.Asks)), true)
}

// Unjudged returns the types of plugins whose part nobody has judged, because CHECK is
// not wanted.
func (p *Part) Unjudged() []string {
	if p.Asked != (Asked{}) {
		return nil
	}
	return p.Uncompared
}

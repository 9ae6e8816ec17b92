package health

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/embedcni/cni/internal/batch"
	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/runner"
	"github.com/embedcni/cni/internal/views"
	"github.com/embedcni/cni/netns"
)

// Repairing is an attachment of a locked container that is repaired.
type Repairing struct {
	Runner    *runner.Runner
	Host      *hostns.NetNS
	Container *netns.Handle // nil if it is not open
	// Compare compares the attachment with its record.
	Compare func(context.Context, *views.View) *Part

	last    *Part       // the last comparison
	delayed batch.Batch // changes of packet filters
	took    []typeTook  // in the order of the first repairs
}

// typeTook is the time that the repair of a plugin's part took.
type typeTook struct {
	typ  string
	took time.Duration
}

// Last returns the last comparison, or nil.
func (a *Repairing) Last() *Part { return a.last }

// Report reports the repairs of each plugin's part to the log and the observer. failed
// are those that failed, by type.
func (a *Repairing) Report(ctx context.Context, failed map[string][]error) {
	for _, t := range a.took {
		a.Runner.ReportRepair(ctx, t.typ, t.took, errors.Join(failed[t.typ]...))
	}
}

// Repairs is attachments that are repaired together. It implements [Group].
type Repairs []*Repairing

var _ Group = Repairs{}

// DumpFor is the number of attachments from which one look at all of a host is cheaper
// than asking the kernel for the parts of each.
const DumpFor = 4

// Compare implements [Group]. The containers are locked, so that one look at the
// host is as good as the kernel itself: if that changes meanwhile, and something seems
// to be missing, the kernel is asked.
func (g Repairs) Compare(ctx context.Context, members []int) []Comparison {
	all := make([]Comparison, len(members))
	if len(members) < DumpFor {
		for i, n := range members {
			all[i] = g[n].look(ctx, &views.Looks{})
		}
		return all
	}
	looks := views.Dumps()
	looks.Each(len(members), func(i int, its *views.Looks) { all[i] = g[members[i]].look(ctx, its) })
	if err := looks.Close(); err != nil {
		g[members[0]].Runner.Logger.Error("close network namespace", "error", err)
	}
	return all
}

// look compares the attachment anew.
func (a *Repairing) look(ctx context.Context, looks *views.Looks) (found Comparison) {
	defer func() {
		if v := recover(); v != nil { // in this goroutine it would end the program
			found = Comparison{Err: fmt.Errorf("panic: %v\n%s", v, debug.Stack())}
		}
	}()
	c, err := a.compareIn(ctx, looks)
	if err != nil {
		return Comparison{Err: err}
	}
	a.last = c
	return Comparison{Differences: c.Differences}
}

func (a *Repairing) compareIn(ctx context.Context, looks *views.Looks) (c *Part, err error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if a.Container == nil {
		return nil, fmt.Errorf("its network namespace is not open: %w", hostns.ErrInvalid)
	}
	v, err := looks.Open(ctx, a.Host, a.Container)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, v.Close()) }()
	bound, cancel := a.Runner.Bound(ctx, "CHECK")
	defer cancel()
	c = a.Compare(bound, v)
	if bound.Err() != nil { // then parts count as neither compared nor missing
		return nil, context.Cause(bound)
	}
	return c, nil
}

// Fix implements [Group].
func (g Repairs) Fix(ctx context.Context, member int, d compare.Difference, together bool) error {
	a := g[member]
	var b *batch.Batch
	if together {
		b = &a.delayed
	}
	begun := time.Now()
	err := a.Runner.Fix(ctx, d, b)
	a.spent(d.Plugin, time.Since(begun))
	return err
}

func (a *Repairing) spent(typ string, took time.Duration) {
	i := slices.IndexFunc(a.took, func(t typeTook) bool { return t.typ == typ })
	if i < 0 {
		i = len(a.took)
		a.took = append(a.took, typeTook{typ: typ})
	}
	a.took[i].took += took
}

// Apply implements [Group].
func (g Repairs) Apply(ctx context.Context, members []int) []error {
	ctx, cancel := g[members[0]].Runner.Bound(ctx, "CHECK")
	defer cancel()
	var all []*batch.Batch
	for _, n := range members {
		all = append(all, &g[n].delayed)
	}
	return batch.FlushTogether(ctx, all)
}

// Announce implements [Group].
func (g Repairs) Announce(ctx context.Context, member int, d compare.Difference, unanswered bool) {
	r := g[member].Runner
	d.Fix = func(ctx context.Context) error { return d.Announce(ctx, unanswered) }
	if err := r.Fix(ctx, d, nil); err != nil {
		r.Logger.Warn("the host and the container have not asked for each other's hardware address",
			"container", r.ContainerID, "network", r.Network.Name, "interface", r.IfName, "error", err)
	}
}

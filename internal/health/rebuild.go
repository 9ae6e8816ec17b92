package health

import (
	"context"
	"errors"
	"fmt"

	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/parallel"
	"github.com/embedcni/cni/internal/runner"
	"github.com/embedcni/cni/netns"
)

// Repairing is an attachment of a locked container that is repaired.
type Repairing struct {
	Runner    *runner.Runner
	Host      *hostns.NetNS
	Container *netns.Handle // nil if it is not open
	// Compare compares the attachment with its record.
	Compare func(context.Context, *compare.View) *Part
	Inside  bool // repair the container's namespace too
	// Want reports whether a difference that could be repaired is to be; nil: all are.
	Want func(compare.Difference) bool

	Outcome       // of Repair
	Last    *Part // the last comparison, or nil

	progress
}

// Report reports the repairs of each plugin's part to the log and the observer.
func (r *Repairing) Report(ctx context.Context) {
	for _, tried := range r.order {
		typ := tried.Plugin
		took, ok := r.took[typ]
		if !ok {
			continue // reported
		}
		delete(r.took, typ)
		var failed []error
		for _, left := range r.Left {
			if left.Failed && left.Plugin == typ {
				failed = append(failed, left.Reason)
			}
		}
		r.Runner.ReportRepair(ctx, typ, took, errors.Join(failed...))
	}
}

// DumpFor is the number of attachments from which one look at all of a host is cheaper
// than asking the kernel for the parts of each.
const DumpFor = 4

// compareAll compares attachments with their records anew. The containers are locked, so
// that one look at the host is as good as a question for each.
func compareAll(ctx context.Context, all []*Repairing) {
	if len(all) < DumpFor {
		for _, r := range all {
			r.look(ctx, &compare.Looks{})
		}
		return
	}
	looks := compare.Dumps()
	looks.Each(len(all), func(i int, its *compare.Looks) { all[i].look(ctx, its) })
	if err := looks.Close(); err != nil {
		all[0].Runner.Logger.Error("close network namespace", "error", err)
	}
}

// look compares the attachment anew.
func (r *Repairing) look(ctx context.Context, looks *compare.Looks) {
	r.Err = parallel.Try(func() (err error) {
		r.now, err = r.compare(ctx, looks)
		return err
	})
}

func (r *Repairing) compare(ctx context.Context, looks *compare.Looks) (c *Part, err error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if r.Container == nil {
		return nil, fmt.Errorf("its network namespace is not open: %w", hostns.ErrInvalid)
	}
	v, err := looks.Open(ctx, r.Host, r.Container)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, v.Close()) }()
	bound, cancel := r.Runner.Bound(ctx, "CHECK")
	defer cancel()
	c = r.Compare(bound, v)
	if bound.Err() != nil { // then parts count as neither compared nor missing
		return nil, context.Cause(bound)
	}
	return c, nil
}

// apply makes the delayed changes of attachments, all together. It returns an error for
// each of them, in their order: if one is not nil, some of its changes may have been made.
func apply(ctx context.Context, all []*Repairing) []error {
	if len(all) == 0 {
		return nil
	}
	ctx, cancel := all[0].Runner.Bound(ctx, "CHECK")
	defer cancel()
	var delayed []*parallel.Batch
	for _, r := range all {
		delayed = append(delayed, &r.batch)
	}
	return parallel.FlushTogether(ctx, delayed)
}

// announce calls the Announce of a difference. An error is reported to the log alone: the
// attachment is repaired without it.
func (r *Repairing) announce(ctx context.Context, d compare.Difference, unanswered bool) {
	d.Fix = func(ctx context.Context) error { return d.Announce(ctx, unanswered) }
	if err := r.Runner.Fix(ctx, d, nil); err != nil {
		r.Runner.Logger.Warn("the host and the container have not asked for each other's hardware address",
			"container", r.Runner.ContainerID, "network", r.Runner.Network.Name, "interface", r.Runner.IfName, "error", err)
	}
}

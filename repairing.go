package cni

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/embedcni/cni/internal/batch"
	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/repair"
	"github.com/embedcni/cni/internal/runner"
	"github.com/embedcni/cni/internal/spans"
	"github.com/embedcni/cni/internal/views"
)

// repairOp is the Op of a repair's errors and events.
const repairOp = runner.VerbRepair

// repairing is the repair of one attachment. It implements [repair.Subject].
type repairing struct {
	*attachment
	runner   *runner.Runner
	compared *compared     // the last comparison
	delayed  *batch.Batch  // changes of packet filters
	took     []tookForType // by the order of the first repair
}

// tookForType is the time that the repair of a plugin's part took.
type tookForType struct {
	typ  string
	took time.Duration
}

// repair repairs one attachment. Then it asks the plugins for CHECK whose parts nobody
// else can compare.
func (a *attachment) repair(ctx context.Context, o repair.Options, report *RepairReport) (err error) {
	ctx, span := spans.Network(ctx, "cni.repairNetwork", a.network.config.Name, a.IfName)
	defer func() { spans.End(span, err) }()
	r, err := a.makeMissing(ctx, o, report)
	if err == nil {
		err = r.ask(ctx, report)
	}
	return a.errors(repairOp, err)
}

// makeMissing makes the missing parts of the attachment again.
func (a *attachment) makeMissing(ctx context.Context, o repair.Options, report *RepairReport) (*repairing, error) {
	r := &repairing{attachment: a, runner: a.runner(), delayed: &batch.Batch{}}
	out, err := repair.Run(ctx, r, o)
	r.report(ctx, out, report)
	return r, err
}

// Compare implements [repair.Subject].
func (r *repairing) Compare(ctx context.Context) (found []compare.Difference, err error) {
	container := r.inside()
	if container == nil {
		return nil, fmt.Errorf("its network namespace is not open: %w", ErrInvalidNetNS)
	}
	v, err := (&views.Looks{}).Open(ctx, r.op.Host, container)
	if err != nil {
		return nil, err
	}
	defer func() { err = join(err, v.Close()) }()
	bound, cancel := r.runner.Bound(ctx, "CHECK")
	defer cancel()
	c := r.compare(bound, v)
	if bound.Err() != nil { // then parts count as neither compared nor missing
		return nil, context.Cause(bound)
	}
	r.compared = c
	return c.differences, nil
}

// Fix implements [repair.Subject].
func (r *repairing) Fix(ctx context.Context, d compare.Difference, together bool) error {
	var b *batch.Batch
	if together {
		b = r.delayed
	}
	begun := time.Now()
	err := r.runner.Fix(ctx, d, b)
	i := slices.IndexFunc(r.took, func(t tookForType) bool { return t.typ == d.Plugin })
	if i < 0 {
		i = len(r.took)
		r.took = append(r.took, tookForType{typ: d.Plugin})
	}
	r.took[i].took += time.Since(begun)
	return err
}

// Apply implements [repair.Subject].
func (r *repairing) Apply(ctx context.Context) error {
	if r.delayed.Empty() {
		return nil
	}
	ctx, cancel := r.runner.Bound(ctx, "CHECK")
	defer cancel()
	return r.delayed.Flush(ctx)
}

// report adds the outcome to the report, and reports it to the log and the observer.
func (r *repairing) report(ctx context.Context, out repair.Outcome, report *RepairReport) {
	log := r.op.log().With("network", r.network.config.Name, "interface", r.IfName)
	for _, d := range out.Repaired {
		log.Info("repaired", "plugin", d.Plugin, "kind", d.Kind, "object", d.Object, "wanted", d.Wanted)
		report.Repaired = append(report.Repaired, r.difference(d))
	}
	failed := make(map[string][]error)
	for _, left := range out.Left {
		if left.Failed {
			log.Warn("not repaired", "plugin", left.Plugin, "kind", left.Kind, "object", left.Object, "error", left.Reason)
			failed[left.Plugin] = append(failed[left.Plugin], left.Reason)
		}
		report.Remaining = append(report.Remaining, Remaining{r.difference(left.Difference), asPublic(left.Reason)})
	}
	for _, t := range r.took {
		r.runner.ReportRepair(ctx, t.typ, t.took, errors.Join(failed[t.typ]...))
	}
}

func (r *repairing) difference(d compare.Difference) Difference {
	return differenceOf(r.network.config.Name, r.IfName, d)
}

// asPublic adds this package's sentinels to the reason why a difference remains.
func asPublic(reason error) error {
	switch {
	case errors.Is(reason, repair.ErrNotAsked):
		return &tagged{reason, ErrInContainer}
	case errors.Is(reason, repair.ErrNotAddable), errors.Is(reason, repair.ErrReturned):
		return &tagged{reason, ErrNotRepairable}
	}
	return reason
}

// errOwnPlugin: an executable of a type that is not built in, or a plugin of the
// program, has made a part.
var errOwnPlugin = fmt.Errorf("%w: only the plugin itself knows its part, and the specification forbids a second ADD without a DEL; "+
	"Remove and Setup make it again", ErrNotRepairable)

// ask asks the plugins for CHECK whose parts nobody compares, and reports those that
// find something wrong, or give no answer. It returns the cause if ctx ends.
func (r *repairing) ask(ctx context.Context, report *RepairReport) error {
	if r.compared.err != nil {
		report.Unknown = append(report.Unknown, r.errors(repairOp, r.compared.err))
	}
	if len(r.compared.uncompared) == 0 {
		return nil
	}
	err := r.chain().CheckSome(ctx, &r.Attachment, r.partial, func(position int) bool {
		p := r.network.config.Plugins[position].Network
		return slices.Contains(r.compared.uncompared, p.Type) || slices.Contains(r.compared.uncompared, p.IPAM.Type)
	})
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		report.Unknown = append(report.Unknown, &tagged{fmt.Errorf("%w; %w", r.errors("CHECK", err), errOwnPlugin), ErrNotRepairable})
	}
	return nil
}

package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/embedcni/cni/internal/engine/container"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/internal/run/runner"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/outcome"
)

// RepairOptions say what to repair; see cni.RepairOptions.
type RepairOptions struct {
	Inside, Unheld bool
	Want           func(containerID string, d outcome.Difference) bool
}

// Repair adds the missing parts of one container, and asks its plugins for CHECK. The report
// is valid even if there is an error.
func (eng *Engine) Repair(ctx context.Context, id record.ID, o RepairOptions) (*outcome.RepairReport, error) {
	op, err := eng.beginRepair(ctx, id, true)
	if err != nil {
		return nil, err
	}
	defer op.end()
	if err := recallToRepair(op); err != nil {
		return nil, err
	}
	rs, err := beginRepairs(ctx, eng, o)
	if err != nil {
		return nil, err
	}
	defer rs.end()
	rs.asks = true
	report := &outcome.RepairReport{ContainerID: string(id)}
	var all attachments
	for _, a := range op.attachments {
		if n := a.entry(); n == nil || op.c.Recorded.Record.IsUnfinished(n) {
			report.Unknown = append(report.Unknown, a.error(repairOp, errUnfinished))
		} else {
			all = append(all, a)
		}
	}
	for _, r := range rs.run(ctx, all, map[record.ID]*outcome.RepairReport{id: report}) {
		err = Join(err, r.err)
	}
	return report, err
}

// beginRepair locks the container, as for an ADD. Unless it waits, it returns nil for one
// that is locked.
func (eng *Engine) beginRepair(ctx context.Context, id record.ID, waits bool) (*operation, error) {
	op, err := eng.named(id)
	if err != nil {
		return nil, err
	}
	locked := true
	if waits {
		err = op.lock(ctx, container.Access{})
	} else {
		locked, err = op.c.Guard.TryLock()
	}
	if !locked || err != nil {
		return nil, Join(err, op.c.Place.Host.Close())
	}
	return op, nil
}

// recallToRepair finds the attachments in the record. It refuses a container that
// nothing may be added to, or that may be dead.
func recallToRepair(op *operation) error {
	damage, err := op.load()
	switch {
	case err != nil:
		return err
	case damage != nil:
		return fmt.Errorf("%w: its record is damaged; call Remove if the container is gone: %w", outcome.ErrNotRepairable, damage)
	case op.c.Recorded.Record == nil:
		return outcome.ErrNotAttached
	case op.c.Recorded.Record.Warm:
		return fmt.Errorf("a pool made it ahead of time, and nobody has it yet: %w", outcome.ErrNotAttached)
	}
	if op.attachments, err = op.enterRecorded(false); err != nil {
		return err
	}
	gone, err := op.c.Place.OutOfReach()
	switch {
	case err == nil || errors.Is(err, outcome.ErrHostNetNS):
		return err
	case gone:
		err = fmt.Errorf("%w; call Remove or Recover", err)
	}
	return fmt.Errorf("%w: %w", outcome.ErrNotRepairable, err)
}

// errUnfinished: an attachment cannot be expected to be whole.
var errUnfinished = fmt.Errorf("%w: its Setup was cut short, or its removal has begun; Remove or Recover ends it", outcome.ErrNotRepairable)

// repairs are repairs of attachments of locked containers, with the same options.
type repairs struct {
	o     RepairOptions
	asks  bool // the plugins for CHECK
	holds []record.Hold
	end   func() // lets others hold containers
}

// run repairs attachments together, and adds the outcomes to the reports, by container. The
// err of each is the reason why it could not be repaired to the end; the report is valid
// with it.
func (rs *repairs) run(ctx context.Context, all attachments, reports map[record.ID]*outcome.RepairReport) (done []*repairing) {
	var in []context.Context
	var end []func(error)
	for _, a := range all {
		its, span := runner.NetworkSpan(ctx, "cni.repairNetwork", a.plan.Network.Config.Name, a.plan.IfName)
		in, end = append(in, its), append(end, func(err error) { runner.EndSpan(span, err) })
		done = append(done, rs.of(a))
	}
	runRounds(ctx, done)
	for i, r := range done {
		report := reports[r.a.op.c.Recorded.ID]
		r.report(in[i], report)
		if r.err == nil && rs.asks {
			r.err = r.ask(in[i], report) // nobody else can compare the parts of these plugins
		}
		end[i](r.err)
		r.err = r.a.errors(repairOp, r.err)
	}
	return done
}

// repairOp is the Op of a repair's errors and events.
const repairOp = runner.VerbRepair

// repairPatience is the time for which the repair of one container waits, in all, for
// work of the kernel: by default it looks for duplicates of an IPv6 address for up to two
// seconds, and for as long as an administrator likes.
const repairPatience = 3 * time.Second

func (rs *repairs) of(a *attachment) *repairing {
	if a.op.patience == nil {
		a.op.patience = contract.NewPatience(repairPatience)
	}
	plugins := a.runner()
	plugins.Given.Patience = a.op.patience
	r := &repairing{a: a, rs: rs, runner: plugins, compare: a.compare}
	r.held = rs.o.Unheld && slices.ContainsFunc(rs.holds, func(h record.Hold) bool { return h.Holds(a.op.c.Recorded.Record, a.plan.Network.Config.Name) })
	return r
}

// report adds the outcome to the report, and reports it to the log and the observer.
func (r *repairing) report(ctx context.Context, report *outcome.RepairReport) {
	log := r.a.op.log().With("network", r.runner.Network.Name, "interface", r.runner.IfName)
	for _, d := range r.repaired {
		log.Info("repaired", "plugin", d.Plugin, "kind", d.Kind, "object", d.Object, "wanted", d.Wanted)
		public := r.difference(d)
		public.Repaired = true
		report.Repaired = append(report.Repaired, public)
	}
	for _, left := range r.left {
		if left.failed {
			log.Warn("not repaired", "plugin", left.Plugin, "kind", left.Kind, "object", left.Object, "error", left.reason)
		}
		report.Remaining = append(report.Remaining, outcome.Remaining{Difference: r.difference(left.Difference), Reason: left.reason})
	}
	r.observe(ctx)
}

func (r *repairing) difference(d contract.Difference) outcome.Difference {
	return differenceOf(r.runner.Network.Name, r.runner.IfName, d)
}

// errOwnPlugin: an executable of a type that is not built in, or a plugin of the
// program, has made a part.
var errOwnPlugin = fmt.Errorf("%w: only the plugin itself knows its part, and the specification forbids a second ADD without a DEL; "+
	"Remove and Setup make it again", outcome.ErrNotRepairable)

// ask asks the plugins for CHECK, as Health does, and reports those that find something
// wrong, and those that give no answer about a part that nobody else can compare. It
// returns the cause if ctx ends.
func (r *repairing) ask(ctx context.Context, report *outcome.RepairReport) error {
	last := r.last
	if last.err != nil {
		report.Unknown = append(report.Unknown, r.a.errors(repairOp, last.err))
	}
	if len(last.differences) > 0 { // the plugins whose parts were compared say no more than these
		maps.DeleteFunc(last.asks, func(position int, _ bool) bool {
			p := r.a.plan.Network.Config.Plugins[position].Network
			return last.covers(p.Type, p.IPAM.Type)
		})
	}
	if !last.wantsCheck() {
		return nil
	}
	checking{r.a, last}.ask(ctx)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	err := last.asked.failed
	if err == nil && len(last.uncompared) > 0 {
		err = last.asked.unknown
	}
	if err != nil {
		report.Unknown = append(report.Unknown, &tagged{fmt.Errorf("%w; %w", err, errOwnPlugin), outcome.ErrNotRepairable})
	}
	return nil
}

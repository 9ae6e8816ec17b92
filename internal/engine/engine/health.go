package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/embedcni/cni/internal/engine/health"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/run/compare"
	"github.com/embedcni/cni/internal/run/hostns"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/netns"
)

// The other states of a verdict.
const (
	stateHealthy   health.State = "healthy"
	stateBroken    health.State = "broken"
	stateElsewhere health.State = "elsewhere"
)

// HealthOptions say what to look at; see cni.HealthOptions.
type HealthOptions struct {
	Containers   []string
	NetNS        map[string]string
	Once         bool
	WithoutCheck bool
	CheckBudget  time.Duration
}

// HealthReport has a verdict on each container.
type HealthReport struct {
	Containers []Verdict
	Compared   time.Duration
	Checks     HealthChecks
	Seen       map[string]*record.Record // of the containers that the options name
}

// HealthChecks count what became of CHECKs.
type HealthChecks struct {
	Asked, Failed, Unanswered, NotAsked int
	Took                                time.Duration
}

// Verdict is what a look says of one container.
type Verdict struct {
	ContainerID string
	State       health.State
	Differences []Difference
	Reason      error
	Uncompared  []string
}

// doubt returns an error with everything that speaks against a container.
func (v Verdict) doubt() error {
	var errs []error
	for _, d := range v.Differences {
		errs = append(errs, d.Err)
	}
	return Doubt(v.ContainerID, v.State, errs, v.Reason)
}

// Doubt returns nil if the container is healthy, and otherwise an error with the
// differences and the reason.
func Doubt(id string, state health.State, found []error, reason error) error {
	if state == stateHealthy {
		return nil
	}
	err := Join(append(found, reason)...)
	if err == nil && state == health.NotAttached {
		return fmt.Errorf("container %s is %w", id, ErrNotAttached)
	}
	return err
}

// see keeps the record of a container, unless the look was at all: a report would keep
// thousands of records in memory.
func (r *HealthReport) see(e *health.Container) {
	if r.Seen == nil {
		return
	}
	r.Seen[nameOf(e.Found)] = nil
	if e.State != health.NotAttached {
		r.Seen[nameOf(e.Found)] = e.Found.Record
	}
}

// verdictOn returns the verdict on a container that was looked at.
func verdictOn(e *health.Container) Verdict {
	v := Verdict{ContainerID: nameOf(e.Found), State: e.State, Reason: e.Reason}
	var noted error
	for _, c := range e.Parts {
		for _, d := range c.Differences {
			v.Differences = append(v.Differences, differenceOf(c.Network, c.IfName, d))
		}
		if c.Asked.Failed != nil {
			v.Differences = append(v.Differences, checkFailed(c))
		}
		v.Reason = Join(v.Reason, c.Err, c.Asked.Unknown, c.Asked.Blind)
		noted = Join(noted, c.Asked.Noted)
		v.Uncompared = append(v.Uncompared, c.Unjudged()...)
	}
	slices.Sort(v.Uncompared)
	v.Uncompared = slices.Compact(v.Uncompared)
	switch {
	case v.State != health.Compared:
	case len(v.Differences) > 0:
		v.State = stateBroken
	case v.Reason != nil:
		v.State = health.Unknown
	default:
		v.State, v.Reason = stateHealthy, noted
	}
	return v
}

// look is a look at containers, none of which is locked but to ask its plugins.
type look struct {
	eng  *Engine
	host *hostns.NetNS // where plugins run
	own  bool          // only this owner's attachments are compared
	once bool          // see HealthOptions.Once
}

// Health looks at containers, and returns the verdict on each.
func (eng *Engine) Health(ctx context.Context, o HealthOptions) (report *HealthReport, err error) {
	if err := eng.RefuseInside(ctx); err != nil {
		return nil, err
	}
	l := &look{eng: eng, own: len(o.Containers) == 0, once: o.Once}
	if l.host, err = eng.openHost(); err != nil {
		return nil, err
	}
	defer func() { err = Join(err, l.host.Close()) }()
	var found []record.Found
	if l.own {
		report = &HealthReport{}
		found, err = owned(eng, true, nil)
		found = slices.DeleteFunc(found, func(f record.Found) bool { return f.Record.Warm })
	} else {
		report = &HealthReport{Seen: make(map[string]*record.Record, len(o.Containers))}
		found, err = l.named(o.Containers, report)
	}
	if err != nil {
		return nil, err
	}
	begun := time.Now()
	var all []*health.Container
	for _, e := range l.at(ctx, found) {
		if h, ok := l.elsewhere(e, o.NetNS); ok {
			report.Containers = append(report.Containers, h)
			report.see(e)
		} else {
			all = append(all, e)
		}
	}
	report.Compared = time.Since(begun)
	if !o.WithoutCheck {
		report.Checks = l.askAll(ctx, all, o.CheckBudget)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	for _, e := range all {
		if e.State != health.NotAttached || !l.own {
			report.Containers = append(report.Containers, verdictOn(e))
		}
		report.see(e)
	}
	slices.SortFunc(report.Containers, func(a, b Verdict) int { return strings.Compare(a.ContainerID, b.ContainerID) })
	return report, nil
}

// named returns the records of containers. The report has the verdict on those that are not
// on record.
func (l *look) named(ids []string, report *HealthReport) (found []record.Found, err error) {
	ids = slices.Clone(ids)
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		if err := ValidateID(record.ID(id)); err != nil {
			return nil, err
		}
		f := l.eng.Store.Records.Find(record.ID(id))
		if f.Record == nil {
			h, err := l.offRecord(id)
			if err != nil {
				return nil, err
			}
			report.Containers = append(report.Containers, h)
			report.Seen[id] = nil
			continue
		}
		f.Record.ContainerID = record.ID(id) // also if it is illegible
		found = append(found, f)
	}
	return found, nil
}

// offRecord returns the verdict on a container that is not on record.
func (l *look) offRecord(id string) (Verdict, error) {
	cached, err := chain.AllCached(l.eng.opts.StateDir, id)
	if err != nil {
		return Verdict{}, err
	}
	if len(cached) > 0 {
		return Verdict{ContainerID: id, State: health.Unknown, Reason: errOnlyCached}, nil
	}
	return Verdict{ContainerID: id, State: health.NotAttached}, nil
}

// errOnlyCached: nothing says in which namespace the plugins ran, nor which.
var errOnlyCached = errors.New("it is in libcni's cache and not on record, since another program attached it; Check asks its plugins")

// elsewhere returns the verdict on a container that is not attached in the namespace of
// which the caller knows the path. A container whose record does not say where it is
// attached, or which is dead, has the verdict of the look.
func (l *look) elsewhere(e *health.Container, paths map[string]string) (Verdict, bool) {
	path, ok := paths[string(e.Found.Record.ContainerID)]
	if !ok || e.Found.Err != nil || e.State == health.Gone || e.State == health.NotAttached {
		return Verdict{}, false
	}
	state, err := l.isAt(e.Found.Record.NetNS, path)
	return Verdict{ContainerID: nameOf(e.Found), State: state, Reason: err}, err != nil
}

// isAt returns nil if the path leads to the recorded namespace. Otherwise it returns why
// not, and what that makes of a container.
func (l *look) isAt(recorded record.NetNS, path string) (health.State, error) {
	h, _, err := l.host.OpenContainer(path, "CHECK")
	switch {
	case err != nil && !hostns.LeadsNowhere(err) && errors.As(err, new(syscall.Errno)):
		return health.Unknown, err
	case err != nil:
		return stateElsewhere, fmt.Errorf("it is attached in %s: %w", recorded.Path, err)
	case h == nil:
		return "", nil // off Linux the path means nothing here
	}
	now := h.ID()
	if err := h.Close(); err != nil {
		l.eng.opts.Logger.Error("close network namespace", "error", err)
	}
	switch recorded.ID() {
	case now:
		return "", nil
	case netns.ID{}:
		return health.Unknown, errors.New("its record does not say in which network namespace it is attached")
	}
	return stateElsewhere, fmt.Errorf("it is attached in the network namespace %v, given as %s, and %s leads to %v: %w",
		recorded.ID(), recorded.Path, path, now, ErrInvalidNetNS)
}

// at looks at the containers of records.
func (l *look) at(ctx context.Context, found []record.Found) []*health.Container {
	s := l.eng.Store
	h := &health.Look{Records: s.Records, IsLocked: s.Locks.IsLocked, Logger: l.eng.opts.Logger, Brief: l.once}
	h.Examine = func(c *health.Container, looks *compare.Looks) error { return l.examine(ctx, c, looks) }
	return h.All(ctx, found)
}

// examine compares a container with its record. The error is the reason why it could
// not.
func (l *look) examine(ctx context.Context, c *health.Container, looks *compare.Looks) error {
	rec := c.Found.Record
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case c.Found.Err != nil:
		return AsRecordError(l.eng.Store.Records, rec.ContainerID, c.Found.File, c.Found.Err)
	}
	op, err := l.operation(rec.ContainerID)
	if err != nil {
		return err
	}
	defer op.c.Close()
	op.c.Recorded.Record = rec
	all, err := op.enterRecorded(false)
	if err != nil {
		return err
	}
	if l.own {
		all = slices.DeleteFunc(all, func(a *attachment) bool { return !a.own() })
	}
	if len(all) == 0 {
		c.State = health.NotAttached
		return nil
	}
	if c.State, c.Reason = op.outOfReach(); c.State == health.Compared {
		c.Parts, err = op.compareAll(ctx, looks, all)
	}
	return err
}

// operation returns an operation of a container that is not locked.
func (l *look) operation(id record.ID) (*operation, error) {
	host, err := l.host.Dup()
	if err != nil {
		return nil, err
	}
	return &operation{eng: l.eng, c: l.eng.Store.New(id, host)}, nil
}

// kindCheck is the kind of a difference that a plugin's CHECK has found.
const kindCheck = "check"

// Difference is one thing that is missing or different; see cni.Difference.
type Difference struct {
	Network, IfName, Plugin string
	Kind                    string
	Inside                  bool // in the container's namespace
	Object, Wanted, Found   string
	Repairable              bool
	Why                     string // it is not repairable
	Err                     error
}

// String says what differs.
func (d Difference) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "network %q, interface %s, plugin %s: %s", d.Network, d.IfName, d.Plugin, d.Kind)
	if d.Object != "" {
		fmt.Fprintf(&b, " %s", d.Object)
	}
	if d.Inside {
		b.WriteString(" in the container")
	}
	switch {
	case d.Kind == kindCheck:
		fmt.Fprintf(&b, ": %v", d.Err)
	case d.Found == "":
		b.WriteString(" is missing")
	default:
		fmt.Fprintf(&b, " is %s, not %s", d.Found, d.Wanted)
	}
	if !d.Repairable && d.Why != "" {
		fmt.Fprintf(&b, " (not repairable: %s)", d.Why)
	}
	return b.String()
}

// differenceOf returns a difference of an attachment as callers see it.
func differenceOf(network, ifName string, d compare.Difference) Difference {
	public := Difference{
		Network: network, IfName: ifName, Plugin: d.Plugin, Kind: string(d.Kind), Inside: d.Inside,
		Object: d.Object, Wanted: d.Wanted, Found: d.Found, Repairable: d.Fix != nil, Why: d.Why, Err: d.Err,
	}
	if !public.Repairable && public.Why == "" {
		public.Why = "adding something does not put it right"
	}
	return public
}

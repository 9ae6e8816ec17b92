package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/embedcni/cni/internal/engine/container"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/outcome"
)

// HealthOptions say what to look at; see cni.HealthOptions.
type HealthOptions struct {
	Containers   []string
	NetNS        map[string]string
	Once         bool
	WithoutCheck bool
	CheckBudget  time.Duration
}

// verdictOn returns the verdict on a container that was looked at.
func verdictOn(e *examined) outcome.Health {
	v := outcome.Health{ContainerID: nameOf(e.found), State: e.state, Reason: e.reason}
	var noted error
	for _, c := range e.parts {
		for _, d := range c.differences {
			v.Differences = append(v.Differences, differenceOf(c.network, c.ifName, d))
		}
		if c.asked.failed != nil {
			v.Differences = append(v.Differences, checkFailed(c))
		}
		v.Reason = Join(v.Reason, c.err, c.asked.unknown, c.asked.blind)
		noted = Join(noted, c.asked.noted)
		v.Uncompared = append(v.Uncompared, c.unjudged()...)
	}
	slices.Sort(v.Uncompared)
	v.Uncompared = slices.Compact(v.Uncompared)
	switch {
	case v.State != stateCompared:
	case len(v.Differences) > 0:
		v.State = outcome.StateBroken
	case v.Reason != nil:
		v.State = outcome.StateUnknown
	default:
		v.State, v.Reason = outcome.StateHealthy, noted
	}
	return v
}

// look is a look at containers, none of which is locked but to ask its plugins.
type look struct {
	eng  *Engine
	host *container.Host // where plugins run
	own  bool            // only this owner's attachments are compared
	once bool            // see HealthOptions.Once
}

// Health looks at containers, and returns the verdict on each.
func (eng *Engine) Health(ctx context.Context, o HealthOptions) (verdicts []outcome.Health, err error) {
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
		found, err = owned(eng, true, nil)
		found = slices.DeleteFunc(found, func(f record.Found) bool { return f.Record.Warm })
	} else {
		found, verdicts, err = l.named(o.Containers)
	}
	if err != nil {
		return nil, err
	}
	var all []*examined
	for _, e := range l.at(ctx, found) {
		if h, ok := l.elsewhere(e, o.NetNS); ok {
			verdicts = append(verdicts, h)
		} else {
			all = append(all, e)
		}
	}
	if !o.WithoutCheck {
		l.askAll(ctx, all, o.CheckBudget)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	for _, e := range all {
		if e.state != outcome.StateNotAttached || !l.own {
			verdicts = append(verdicts, verdictOn(e))
		}
	}
	slices.SortFunc(verdicts, func(a, b outcome.Health) int { return strings.Compare(a.ContainerID, b.ContainerID) })
	return verdicts, nil
}

// named returns the records of containers, and the verdicts on those that are not on
// record.
func (l *look) named(ids []string) (found []record.Found, off []outcome.Health, err error) {
	ids = slices.Clone(ids)
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		if err := ValidateID(record.ID(id)); err != nil {
			return nil, nil, err
		}
		f := l.eng.Store.Records.Find(record.ID(id))
		if f.Record == nil {
			h, err := l.offRecord(id)
			if err != nil {
				return nil, nil, err
			}
			off = append(off, h)
			continue
		}
		f.Record.ContainerID = record.ID(id) // also if it is illegible
		found = append(found, f)
	}
	return found, off, nil
}

// offRecord returns the verdict on a container that is not on record.
func (l *look) offRecord(id string) (outcome.Health, error) {
	cached, err := chain.AllCached(l.eng.opts.StateDir, id)
	if err != nil {
		return outcome.Health{}, err
	}
	if len(cached) > 0 {
		return outcome.Health{ContainerID: id, State: outcome.StateUnknown, Reason: errOnlyCached}, nil
	}
	return outcome.Health{ContainerID: id, State: outcome.StateNotAttached}, nil
}

// errOnlyCached: nothing says in which namespace the plugins ran, nor which.
var errOnlyCached = errors.New("it is in libcni's cache and not on record, since another program attached it; Check asks its plugins")

// elsewhere returns the verdict on a container that is not attached in the namespace of
// which the caller knows the path. A container whose record does not say where it is
// attached, or which is dead, has the verdict of the look.
func (l *look) elsewhere(e *examined, paths map[string]string) (outcome.Health, bool) {
	path, ok := paths[string(e.found.Record.ContainerID)]
	if !ok || e.found.Err != nil || e.state == outcome.StateGone || e.state == outcome.StateNotAttached {
		return outcome.Health{}, false
	}
	state, err := l.isAt(e.found.Record.NetNS, path)
	return outcome.Health{ContainerID: nameOf(e.found), State: state, Reason: err}, err != nil
}

// isAt returns nil if the path leads to the recorded namespace. Otherwise it returns why
// not, and what that makes of a container.
func (l *look) isAt(recorded record.NetNS, path string) (outcome.HealthState, error) {
	h, _, err := l.host.OpenContainer(path, "CHECK")
	switch {
	case err != nil && !container.LeadsNowhere(err) && errors.As(err, new(syscall.Errno)):
		return outcome.StateUnknown, err
	case err != nil:
		return outcome.StateElsewhere, fmt.Errorf("it is attached in %s: %w", recorded.Path, err)
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
		return outcome.StateUnknown, errors.New("its record does not say in which network namespace it is attached")
	}
	return outcome.StateElsewhere, fmt.Errorf("it is attached in the network namespace %v, given as %s, and %s leads to %v: %w",
		recorded.ID(), recorded.Path, path, now, outcome.ErrInvalidNetNS)
}

// at looks at the containers of records.
func (l *look) at(ctx context.Context, found []record.Found) []*examined {
	s := l.eng.Store
	x := &examination{records: s.Records, isLocked: s.Locks.IsLocked, logger: l.eng.opts.Logger, brief: l.once}
	x.examine = func(c *examined, looks *contract.Looks) error { return l.examine(ctx, c, looks) }
	return x.all(ctx, found)
}

// examine compares a container with its record. The error is the reason why it could
// not.
func (l *look) examine(ctx context.Context, c *examined, looks *contract.Looks) error {
	rec := c.found.Record
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case c.found.Err != nil:
		return AsRecordError(l.eng.Store.Records, rec.ContainerID, c.found.File, c.found.Err)
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
		c.state = outcome.StateNotAttached
		return nil
	}
	if c.state, c.reason = op.outOfReach(); c.state == stateCompared {
		c.parts, err = op.compareAll(ctx, looks, all)
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

// differenceOf returns a difference of an attachment as callers see it.
func differenceOf(network, ifName string, d contract.Difference) outcome.Difference {
	public := outcome.Difference{
		Network: network, IfName: ifName, Plugin: d.Plugin, Kind: string(d.Kind), Inside: d.Inside,
		Object: d.Object, Wanted: d.Wanted, Found: d.Found, Repairable: d.Fix != nil, Why: d.Why, Err: d.Err,
	}
	if !public.Repairable && public.Why == "" {
		public.Why = "adding something does not put it right"
	}
	return public
}

package cni

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/conflist"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/views"
)

// examined is a container that was looked at. The container is not locked meanwhile, so
// a look only suspects; see look.
type examined struct {
	found record.Found // its record
	// state is empty if the attachments decide.
	state   HealthState
	reason  error
	parts   []*compared
	settled bool // it is certain that no other call has changed the container meanwhile
}

// suspect reports whether anything is wrong with the container, as far as was seen.
func (e *examined) suspect() bool {
	return e.state != "" || slices.ContainsFunc(e.parts, func(c *compared) bool { return !c.clean() })
}

// isRepairable reports whether Repair can make a part on the host again.
func (e *examined) isRepairable() bool {
	return slices.ContainsFunc(e.parts, func(c *compared) bool {
		return slices.ContainsFunc(c.differences, func(d compare.Difference) bool { return d.Fix != nil && !d.Inside })
	})
}

// mostLooks limits how often a container is looked at that other calls change
// meanwhile.
const mostLooks = 3

// look examines the containers of records. A container that seems to differ is looked
// at again, until its record was the same before and after, and no other call was in
// progress: the ADDs and DELs of a call change the record before they change anything
// else, and while the container is locked.
//
// The second look is another one at the whole host, rather than one for each container,
// so that a thousand containers that lack their masquerading take two looks.
func (s *snapshot) look(ctx context.Context, host *hostns.NetNS, found []record.Found, own bool) []*examined {
	parsed := &conflist.Cache{}
	all := s.lookOnce(ctx, host, found, own, parsed)
	for n := 1; n < mostLooks && ctx.Err() == nil; n++ {
		var again []record.Found
		var at []int
		for i, e := range all {
			if e.settled || !e.suspect() {
				continue
			}
			now := s.reload(e.found)
			if now.Record == nil {
				*e = examined{found: e.found, state: StateNotAttached, settled: true}
				continue
			}
			again, at = append(again, now), append(at, i)
		}
		if len(again) == 0 {
			break
		}
		for n, e := range s.lookOnce(ctx, host, again, own, parsed) {
			e.settled = s.isUnchanged(e.found)
			all[at[n]] = e
		}
	}
	for _, e := range all {
		if e.suspect() && !e.settled && ctx.Err() == nil {
			e.state, e.reason = StateUnknown, fmt.Errorf("it changes: %w", ErrBusy)
		}
	}
	return all
}

// reload reads a record again. Record is nil if it was deleted.
func (s *snapshot) reload(f record.Found) record.Found {
	f.Record, f.Err = s.Records.LoadFile(f.File)
	return f
}

// isUnchanged reports whether no other call has changed a container since its record
// was read.
func (s *snapshot) isUnchanged(f record.Found) bool {
	if locked, err := s.Locks.IsLocked(f.Record.ContainerID); locked || err != nil {
		return false
	}
	return sameRecord(f, s.reload(f))
}

func sameRecord(a, b record.Found) bool {
	return b.Record != nil && reflect.DeepEqual(a.Record, b.Record) && (a.Err == nil) == (b.Err == nil)
}

// lookOnce examines the containers of records, several at once, from one look at the
// host.
func (s *snapshot) lookOnce(ctx context.Context, host *hostns.NetNS, found []record.Found, own bool, parsed *conflist.Cache) []*examined {
	looks := views.Dumps()
	defer func() {
		if err := looks.Close(); err != nil {
			s.logger.Error("close network namespace", "error", err)
		}
	}()
	all := make([]*examined, len(found))
	looks.Each(len(found), func(i int, its *views.Looks) {
		all[i] = s.examine(ctx, host, found[i], own, its, parsed)
	})
	return all
}

// examine compares a container that is not locked with its record. With own, it
// compares only this owner's attachments.
func (s *snapshot) examine(ctx context.Context, host *hostns.NetNS, f record.Found, own bool, looks *views.Looks, parsed *conflist.Cache) (e *examined) {
	e = &examined{found: f}
	defer func() {
		if v := recover(); v != nil { // in this goroutine it would end the program
			e.state, e.reason = StateUnknown, fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	unknown := func(err error) *examined {
		e.state, e.reason = StateUnknown, err
		return e
	}
	switch {
	case ctx.Err() != nil:
		return unknown(context.Cause(ctx))
	case f.Err != nil:
		return unknown(recordError(s.Records, f.Record.ContainerID, f.File, f.Err))
	}
	its, err := host.Dup()
	if err != nil {
		return unknown(err)
	}
	op := &operation{snapshot: s, Container: s.New(f.Record.ContainerID, its), parsed: parsed}
	defer op.Close()
	op.Record = f.Record
	all, err := op.enterRecorded(false)
	if err != nil {
		return unknown(err)
	}
	if own {
		all = slices.DeleteFunc(all, func(a *attachment) bool { return !a.own() })
	}
	if len(all) == 0 {
		e.state = StateNotAttached
		return e
	}
	if e.state, e.reason = op.outOfReach(); e.state == "" {
		e.parts, err = op.compareAll(ctx, looks, all)
	}
	if err != nil {
		return unknown(err)
	}
	return e
}

// outOfReach returns the state of a container that cannot be compared with the kernel,
// and why. The state is empty if it can. The recorded namespaces are open.
func (op *operation) outOfReach() (HealthState, error) {
	switch {
	case op.Damaged:
		return StateUnknown, fmt.Errorf("it may live, and its record is damaged, so that it cannot be checked; call Remove if it is gone: %w", record.ErrBad)
	case op.Rebooted:
		return StateGone, errRebooted
	case op.Undecided() != nil:
		return StateUnknown, op.Undecided()
	case op.Gone():
		return StateGone, fmt.Errorf("%s: %w", op.Record.NetNS.Path, errNetNSGone)
	case op.HostGone:
		return StateUnknown, fmt.Errorf("the namespace %s that its plugins ran in is gone: %w", op.RecordedHost(), ErrHostNetNS)
	case op.IsAbandoned():
		return StateUnknown, fmt.Errorf("%s no longer leads to its namespace, which is kept at %s: %w", op.Record.NetNS.Path, op.Path, ErrInvalidNetNS)
	}
	return "", nil
}

var (
	errRebooted  = errors.New("it was attached before the machine was rebooted")
	errNetNSGone = errors.New("its network namespace is gone")
)

// compareAll compares attachments of a container whose recorded namespaces are open.
func (op *operation) compareAll(ctx context.Context, looks *views.Looks, all attachments) (parts []*compared, err error) {
	v, err := looks.Open(ctx, op.Host, op.NetNS)
	if err != nil {
		return nil, err
	}
	defer func() { err = join(err, v.Close()) }()
	for _, a := range all {
		if unfinished := a.unfinished(); unfinished != nil {
			parts = append(parts, &compared{network: a.network.config.Name, ifName: a.IfName, err: unfinished})
			continue
		}
		parts = append(parts, a.compare(ctx, v))
	}
	return parts, nil
}

// unfinished returns why an attachment cannot be expected to be whole, or nil: it is
// being made or removed, or a call that did so was cut short.
func (a *attachment) unfinished() error {
	n := a.entry()
	switch {
	case n == nil || !a.op.Record.IsUnfinished(n):
		return nil
	case n.Failures > 0:
		return fmt.Errorf("interface %s of network %q could not be removed: %s", n.IfName, n.Network, n.LastError)
	}
	if alive, err := a.op.RuntimeAlive(a.op.Record); alive || err != nil {
		return join(fmt.Errorf("interface %s of network %q is being attached or detached: %w", n.IfName, n.Network, ErrBusy), err)
	}
	return fmt.Errorf("interface %s of network %q: a Setup or Remove was cut short; Recover or Remove removes it", n.IfName, n.Network)
}

// health returns the verdict.
func (e *examined) health() Health {
	h := Health{ContainerID: nameOf(e.found), State: e.state, Reason: e.reason}
	for _, c := range e.parts {
		for _, d := range c.differences {
			h.Differences = append(h.Differences, differenceOf(c.network, c.ifName, d))
		}
		if c.asked.failed != nil {
			h.Differences = append(h.Differences, c.checkFailed())
		}
		h.Reason = join(h.Reason, c.err, c.asked.unknown)
		h.Uncompared = append(h.Uncompared, c.unjudged()...)
	}
	slices.Sort(h.Uncompared)
	h.Uncompared = slices.Compact(h.Uncompared)
	switch {
	case h.State != "":
	case len(h.Differences) > 0:
		h.State = StateBroken
	case h.Reason != nil:
		h.State = StateUnknown
	default:
		h.State = StateHealthy
	}
	return h
}

// health is Health without the error's prefix.
func (s *snapshot) health(ctx context.Context, o HealthOptions) (_ *HealthReport, err error) {
	if err := s.refuseInside(ctx); err != nil {
		return nil, err
	}
	host, err := s.Hosts.Open(s.hostNetNS)
	if err != nil {
		return nil, err
	}
	defer func() { err = join(err, host.Close()) }()
	found, report, err := s.toExamine(o.Containers)
	if err != nil {
		return nil, err
	}
	begun := time.Now()
	all := s.look(ctx, host, found, len(o.Containers) == 0)
	report.Compared = time.Since(begun)
	if !o.WithoutCheck {
		report.Checks = s.askAll(ctx, host, all, o.CheckBudget)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	for _, e := range all {
		if e.state != StateNotAttached || len(o.Containers) > 0 {
			report.Containers = append(report.Containers, e.health())
		}
	}
	slices.SortFunc(report.Containers, func(a, b Health) int { return strings.Compare(a.ContainerID, b.ContainerID) })
	return report, nil
}

// toExamine returns the records of the containers: of this owner's, or with ids of
// those. The report has the verdict on those that are not on record.
func (s *snapshot) toExamine(ids []string) (found []record.Found, report *HealthReport, err error) {
	report = &HealthReport{}
	if len(ids) == 0 {
		mine, err := s.owned(true, nil)
		return slices.DeleteFunc(mine, func(f record.Found) bool { return f.Record.Warm }), report, err
	}
	ids = slices.Clone(ids)
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		if err := validateID(record.ID(id)); err != nil {
			return nil, nil, err
		}
		f := s.reload(record.Found{File: record.Name(record.ID(id))})
		if f.Record == nil {
			h, err := s.offRecord(record.ID(id))
			if err != nil {
				return nil, nil, err
			}
			report.Containers = append(report.Containers, h)
			continue
		}
		f.Record.ContainerID = record.ID(id) // also if it is illegible
		found = append(found, f)
	}
	return found, report, nil
}

// offRecord returns the verdict on a container that is not on record.
func (s *snapshot) offRecord(id record.ID) (Health, error) {
	cached, err := chain.AllCached(s.stateDir, string(id))
	if err != nil {
		return Health{}, err
	}
	if len(cached) > 0 {
		return Health{ContainerID: string(id), State: StateUnknown, Reason: errOnlyCached}, nil
	}
	return Health{ContainerID: string(id), State: StateNotAttached}, nil
}

// errOnlyCached: nothing says in which namespace the plugins ran, nor which.
var errOnlyCached = errors.New("it is in libcni's cache and not on record, since another program attached it; Check asks its plugins")

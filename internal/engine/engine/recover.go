package engine

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/embedcni/cni/internal/engine/container"
	"github.com/embedcni/cni/internal/kernel/thread"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/outcome"
)

// Recover adopts the containers that live, and removes the others.
func (eng *Engine) Recover(ctx context.Context) (_ *outcome.Report, err error) {
	if err := eng.RefuseInside(ctx); err != nil {
		return nil, err
	}
	host, err := eng.openHost()
	if err != nil {
		return nil, err
	}
	defer func() { err = Join(err, host.Close()) }()
	r := &outcome.Report{}
	found, err := owned(eng, false, r)
	if err != nil {
		return nil, err
	}
	c := &recovery{eng: eng, look: &look{eng: eng, host: host, own: true}, repaired: make(map[record.ID][]outcome.Difference)}
	err = c.all(ctx, found, r)
	if err == nil {
		err = eng.Store.TidyAlone()
	}
	return r, err
}

// recovery is a Recover in progress.
type recovery struct {
	eng    *Engine
	look   *look
	looked map[record.ID]*examined // before any container was locked
	// repaired are the parts that were made again before each container was recovered.
	repaired map[record.ID][]outcome.Difference
	endBy    time.Time // when those that come last have ended, if they are about to
}

// lockedAtOnce is atOnce for containers that another call has locked: each may stay
// locked for seconds.
const lockedAtOnce = 64

// all recovers the containers, last those that are locked, or perhaps about to end.
func (c *recovery) all(ctx context.Context, found []record.Found, report *outcome.Report) error {
	var ids, again []record.ID
	var whole, illegible []record.Found
	for _, f := range found {
		if err := untouchable(c.eng.Store.Records, f); err != nil {
			c.eng.opts.Logger.Warn("a container is left alone", "record", f.File, "reason", err)
			fate{id: nameOf(f), skipped: err}.addTo(report)
			continue
		}
		if f.Record.ContainerID == "" {
			illegible = append(illegible, f)
			continue
		}
		ids = append(ids, f.Record.ContainerID)
		if f.Err == nil && f.Record.WasAttached() {
			whole = append(whole, f)
		}
	}
	for _, o := range c.deleteIllegible(illegible) {
		o.addTo(report)
	}
	c.looked = make(map[record.ID]*examined, len(whole))
	for _, e := range c.look.at(ctx, whole) {
		c.looked[e.found.Record.ContainerID] = e
	}
	c.repairTogether(ctx)
	asking, cancel := withinBudget(ctx, 0)
	defer cancel()
	for _, last := range []bool{false, true} {
		for _, o := range c.each(ctx, asking, ids, last) {
			if !last && (o.ending || errors.Is(o.skipped, outcome.ErrBusy)) {
				again = append(again, record.ID(o.id))
				continue
			}
			o.addTo(report)
		}
		ids, c.endBy = again, time.Now().Add(container.EndsWithin)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// each recovers containers in parallel. It returns the outcomes, in order, of the
// containers that it reached before ctx ended. asking is the context of CHECKs.
func (c *recovery) each(ctx, asking context.Context, ids []record.ID, last bool) []fate {
	workers := atOnce
	if last {
		workers = lockedAtOnce
	}
	all := make([]fate, len(ids))
	thread.Each(len(ids), workers, func(i int) {
		if ctx.Err() == nil {
			err := thread.Try(func() error {
				all[i] = c.one(ctx, asking, ids[i], last)
				return nil
			})
			if err != nil {
				all[i] = fate{id: string(ids[i]), err: err}
			}
		}
	})
	return slices.DeleteFunc(all, func(o fate) bool { return o.id == "" })
}

func (c *recovery) one(ctx, asking context.Context, id record.ID, last bool) (o fate) {
	o.id = string(id)
	op, err := c.begin(ctx, id, last)
	if o.setAside(err) {
		return o
	}
	defer op.end()
	if o.setAside(op.recallOwn()) {
		return o
	}
	if op.c.Recorded.Record == nil {
		return o // removed meanwhile by another call
	}
	if o.ending = op.c.Place.Reached == container.Elsewhere; o.ending && !last || o.setAside(op.c.Place.AwaitEnd(ctx, c.endBy)) {
		return o
	}
	going := goingOf(op)
	if err := op.c.Place.Undecided(); err != nil && len(going) < len(op.attachments) {
		o.skipped = err
		return o
	}
	if len(going) < len(op.attachments) {
		repaired, doubt := c.judge(ctx, asking, op, going)
		o.adopted, o.repaired, o.kept = true, repaired, adopt(op, doubt)
	}
	// A Setup that failed in a namespace that it was to keep leaves a record without attachments.
	empty := !op.c.Recorded.Damaged && op.c.Recorded.Record.IsEmpty()
	stays := !op.c.Recorded.Record.HasOthers(going.names()) && op.c.KeepInhabited()
	if len(going) > 0 || empty && !stays {
		o.err = op.finish(ctx, going)
		o.removed = o.err == nil
	}
	if stays && o.err == nil {
		o.adopted, o.kept = true, errOnlyNetNS
	}
	return o
}

// errOnlyNetNS: the container was attached again in a namespace that Setup had made, and
// that failed, or was killed.
var errOnlyNetNS = fmt.Errorf("it is %w; a process is in its network namespace, which stays until Remove, or a Recover after the process has ended", outcome.ErrNotAttached)

// begin locks the container. It returns ErrBusy if another call has it locked
// for lockedGrace; or, if the container comes last, for a longer grace by a live
// process, even a stopped one. In the latter case it kills plugins of a dead
// runtime.
func (c *recovery) begin(ctx context.Context, id record.ID, last bool) (*operation, error) {
	host, err := c.look.host.Dup()
	if err != nil {
		return nil, err
	}
	how := container.Access{Waiting: container.Hurried}
	if !last {
		brief, cancel := context.WithTimeoutCause(ctx, lockedGrace, outcome.ErrBusy)
		defer cancel()
		ctx, how = brief, container.Access{}
	}
	op := &operation{eng: c.eng, c: c.eng.Store.New(id, host)}
	return op, op.lockToRemove(ctx, how)
}

// goingOf returns the attachments that Recover must remove: all, if the
// container's namespace is gone or it was nobody's container yet; else those on
// which no caller relies.
func goingOf(op *operation) attachments {
	if op.c.Recorded.Damaged {
		// The log has neither boot nor path. Where mounts keep namespaces, a
		// missing mount is proof; elsewhere there is none.
		if op.c.Recorded.Record != nil && op.c.Recorded.Record.WasAttached() && (!op.c.Place.Gone() || !op.eng.Store.Pins.WasMounted(op.c.Recorded.ID)) {
			return nil
		}
		return op.attachments
	}
	if op.c.Place.Gone() || op.c.Recorded.Record.Warm {
		return op.attachments
	}
	return op.unfinished()
}

// unfinished returns the attachments that a Remove has begun to remove, and
// those of an unfinished Setup, about which its caller has learned nothing.
func (op *operation) unfinished() attachments { return op.recorded(op.c.Recorded.Record.IsUnfinished) }

// recorded returns the attachments whose entries in the record are so.
func (op *operation) recorded(is func(*record.Attachment) bool) attachments {
	return slices.DeleteFunc(slices.Clone(op.attachments), func(a *attachment) bool { return !is(a.entry()) })
}

// judge adds the missing parts of the attachments that stay. doubt is the reason why they are
// not known to be healthy. The container is locked.
func (c *recovery) judge(ctx, asking context.Context, op *operation, going attachments) (repaired []outcome.Difference, doubt error) {
	staying := slices.DeleteFunc(slices.Clone(op.attachments), func(a *attachment) bool { return slices.Contains(going, a) })
	e := &examined{found: record.Found{Record: op.c.Recorded.Record, File: record.Name(op.c.Recorded.ID)}}
	if e.state, e.reason = op.outOfReach(); e.state != stateCompared {
		return nil, verdictOn(e).Err()
	}
	var err error
	if e.parts = c.seen(op, staying); e.parts == nil {
		e.parts, err = op.compareAll(ctx, &contract.Looks{}, staying)
	}
	if err == nil && e.isRepairable() {
		repaired, err = c.repair(ctx, op, staying, e)
	}
	for _, part := range e.parts {
		if a := op.attachments.named(part.ifName); part.wantsCheck() {
			checking{a, part}.ask(asking)
		}
		if errors.Is(part.asked.unknown, outcome.ErrNoCheck) {
			part.asked.unknown = nil
		}
		part.asked.blind = nil // it says nothing about this container
	}
	return append(c.repaired[op.c.Recorded.ID], repaired...), Join(err, verdictOn(e).Err())
}

// repairTogether repairs those containers that a look has found to be broken, many at
// once, and looks at them again. What it could not repair is left to the recovery of each.
func (c *recovery) repairTogether(ctx context.Context) {
	var broken []record.ID
	for id, e := range c.looked {
		if e.state == stateCompared && e.settled && e.isRepairable() {
			broken = append(broken, id)
		}
	}
	if len(broken) < dumpFor {
		return
	}
	var again []record.Found
	for id, report := range c.eng.RepairAll(ctx, broken, RepairOptions{Unheld: true}) {
		c.repaired[id] = report.Repaired
		if now := c.eng.Store.Records.Reload(c.looked[id].found); now.Record != nil {
			again = append(again, now)
		}
	}
	for _, e := range c.look.at(ctx, again) {
		c.looked[e.found.Record.ContainerID] = e
	}
}

// seen returns the attachments as the look before has seen them; nil if the container
// may have changed since.
func (c *recovery) seen(op *operation, staying attachments) (parts []*comparison) {
	e := c.looked[op.c.Recorded.ID]
	if e == nil || e.state != stateCompared || e.suspect() && !e.settled || !reflect.DeepEqual(e.found.Record, op.c.Recorded.Record) {
		return nil
	}
	for _, part := range e.parts {
		if staying.named(part.ifName) != nil {
			parts = append(parts, part)
		}
	}
	return parts
}

// adopt keeps a container, and returns the reason why it is not known to be healthy,
// or nil.
func adopt(op *operation, doubt error) error {
	if !op.c.Recorded.Damaged && op.c.Place.NetNS != nil && (op.c.Recorded.Record.LetGo == nil || op.c.Place.Reached == container.ByPath) {
		// Where mounts are not allowed, a descriptor of the last process kept it
		// alive.
		doubt = Join(doubt, op.c.Pin())
	}
	if doubt != nil {
		op.log().Warn("a container lives and is kept, but is not known to be healthy", "reason", doubt)
	}
	return doubt
}

// repair adds missing parts of attachments on the host, unless they are held, and
// compares them anew. It returns the parts that were missing.
func (c *recovery) repair(ctx context.Context, op *operation, all attachments, e *examined) ([]outcome.Difference, error) {
	rs, err := beginRepairs(ctx, c.eng, RepairOptions{Unheld: true})
	if err != nil { // all may be held
		return nil, err
	}
	defer rs.end()
	report := &outcome.RepairReport{}
	e.parts = nil
	for _, r := range rs.run(ctx, all, map[record.ID]*outcome.RepairReport{op.c.Recorded.ID: report}) {
		err = Join(err, r.err)
		if r.last != nil {
			e.parts = append(e.parts, r.last)
		}
	}
	return report.Repaired, err
}

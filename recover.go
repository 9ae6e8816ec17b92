package cni

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/embedcni/cni/internal/container"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/lock"
	"github.com/embedcni/cni/internal/record"
)

// Recover is for the start of a program. It adopts each container of this owner
// that was attached in this boot of the machine and whose network namespace is
// alive, at its path or where it is kept. If a container is not known to be
// healthy, it is in Report.Kept as well, with the reason. A CHECK that fails,
// times out or cannot run is never a reason to remove a container.
//
// An abandoned container (see WithoutReaping) whose namespace the runtime no
// longer keeps alive, but somebody else may, is in Report.Skipped.
//
// Recover removes, as Remove does, containers whose namespace is gone or of
// another boot, attachments of an unfinished Setup or Remove, and containers
// that a pool of a dead process made ahead of time. It kills plugins that a dead
// runtime has left running, after a grace period. A container that cannot be
// removed stays recorded, and is tried again after a time that grows with each
// failure.
//
// Containers are recovered in parallel. A container that another call has locked
// comes last, and is in Report.Skipped if it stays locked.
//
// The error is the reason why Recover could not examine the containers. The
// report has the outcome for each container.
func (r *Runtime) Recover(ctx context.Context) (*Report, error) {
	s := r.current.Load()
	if err := s.refuseInside(ctx); err != nil {
		return nil, fmt.Errorf("recover: %w", err)
	}
	report := &Report{}
	host, err := s.Hosts.Open(s.hostNetNS)
	if err != nil {
		return nil, fmt.Errorf("recover: %w", err)
	}
	found, err := s.owned(false)
	if err != nil {
		return nil, fmt.Errorf("recover: %w", join(err, host.Close()))
	}
	err = s.recoverAll(ctx, host, found, report)
	if err == nil {
		err = s.TidyAlone()
	}
	if err = join(err, host.Close()); err != nil {
		return report, fmt.Errorf("recover: %w", err)
	}
	return report, nil
}

// atOnce is the number of containers that are recovered at the same time. They
// mostly wait: for executables, and for the kernel to delete interfaces. Of the
// locked containers more are tried at once, because each may stay locked for
// seconds.
const atOnce, lockedAtOnce = 16, 64

// recoverAll recovers the containers, first those that are not locked.
func (s *snapshot) recoverAll(ctx context.Context, host *hostns.NetNS, found []record.Found, report *Report) error {
	var ids, locked []record.ID
	for _, f := range found {
		if err := untouchable(s.Records, f); err != nil {
			s.logger.Warn("a container is left alone", "record", f.File, "reason", err)
			report.add(outcome{id: nameOf(f), skipped: err})
			continue
		}
		if f.Record.ContainerID == "" {
			report.add(s.deleteIllegible(f))
			continue
		}
		ids = append(ids, f.Record.ContainerID)
	}
	for _, last := range []bool{false, true} {
		for _, o := range s.recoverEach(ctx, host, ids, last) {
			if !last && errors.Is(o.skipped, ErrBusy) {
				locked = append(locked, record.ID(o.id))
				continue
			}
			report.add(o)
		}
		ids = locked
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// recoverEach recovers containers in parallel. It returns the outcomes, in
// order, of the containers that it reached before ctx ended.
func (s *snapshot) recoverEach(ctx context.Context, host *hostns.NetNS, ids []record.ID, last bool) []outcome {
	outcomes := make([]*outcome, len(ids))
	var group sync.WaitGroup
	next := make(chan int)
	workers := min(atOnce, len(ids))
	if last {
		workers = min(lockedAtOnce, len(ids))
	}
	for range workers {
		group.Add(1)
		go func() {
			defer group.Done()
			for i := range next {
				o := s.recoverOne(ctx, host, ids[i], last)
				outcomes[i] = &o
			}
		}()
	}
	for i := range ids {
		if ctx.Err() != nil {
			break
		}
		next <- i
	}
	close(next)
	group.Wait()
	var all []outcome
	for _, o := range outcomes {
		if o != nil {
			all = append(all, *o)
		}
	}
	return all
}

// recallOwn is recall for Recover and GC: it finds only the attachments of this
// owner, and none if the record was deleted meanwhile.
func (op *operation) recallOwn() error {
	damage, err := op.load()
	if err != nil || op.Record == nil {
		return err
	}
	if err := op.recall(&Namespace{id: op.ID}, damage, false); err != nil {
		return err
	}
	switch {
	case !op.Damaged:
		op.attachments = slices.DeleteFunc(op.attachments, func(a *attachment) bool { return !a.own() })
	case op.NetNS == nil && op.Path != "":
		return fmt.Errorf("the container's network namespace at %s cannot be opened", op.Path)
	case op.Record.Shared() || op.Record.Owner != "" && op.Record.Owner != op.owner:
		return fmt.Errorf("record of container %s: %w", op.ID, errShared)
	}
	return nil
}

// errShared: a damaged record does not say which attachments are this owner's.
var errShared = errors.New("it is damaged, and has attachments of another owner; call Remove if the container is gone")

// own reports whether this owner has made the attachment, which is on record.
func (a *attachment) own() bool {
	n := a.entry()
	return n != nil && a.op.Record.OwnerOf(n) == a.op.owner
}

// deleteIllegible deletes a record whose owner cannot be read, unless a
// namespace is kept for it, in which a container may be alive. It logs that
// nothing finds the other leftovers of the container.
func (s *snapshot) deleteIllegible(f record.Found) (o outcome) {
	o.id = nameOf(f)
	if path := s.Pins.At(f.File); path != "" {
		o.skipped = fmt.Errorf("it names no owner, and %s keeps a namespace that may be a live container's; "+
			"if it is not, unmount that and delete %s: %w", path, s.Records.Path(f.File), f.Err)
		return o
	}
	held, err := s.Locks.TryLockAll([]lock.Key{{Name: container.Barrier}}) // a Setup may be about to replace it
	if held == nil {
		o.skipped = join(ErrBusy, err)
		return o
	}
	defer func() { o.err = join(o.err, held.Release()) }()
	if now, err := s.Records.LoadFile(f.File); now == nil || now.ContainerID != "" || !errors.Is(err, record.ErrBad) {
		return o // it is another by now, or gone
	}
	s.logger.Error("attachment record is unreadable and was deleted; leftovers of its attachments are possible", "file", f.File, "error", f.Err)
	if o.err = s.Pins.Discard(f.File); o.err == nil {
		o.err = s.Records.Discard(f.File)
	}
	if o.err == nil {
		o.left = o.id + " says nothing and was deleted; if its container is known, Remove or CleanUp finds the leftovers"
	}
	return o
}

// errNotYet: a removal failed not long ago.
var errNotYet = errors.New("not tried again yet")

func (s *snapshot) recoverOne(ctx context.Context, host *hostns.NetNS, id record.ID, last bool) (o outcome) {
	defer func() {
		if v := recover(); v != nil { // in this goroutine it would end the program
			o = outcome{id: string(id), err: fmt.Errorf("panic: %v\n%s", v, debug.Stack())}
		}
	}()
	o.id = string(id)
	op, err := s.beginRecovery(ctx, host, id, last)
	if o.setAside(err) {
		return o
	}
	defer op.end()
	if o.setAside(op.recallOwn()) {
		return o
	}
	if op.Record == nil {
		return o // removed meanwhile by another call
	}
	going, err := op.going()
	if err != nil {
		o.err = err
		return o
	}
	if err := op.Undecided(); err != nil && len(going) < len(op.attachments) {
		o.skipped = err
		return o
	}
	if o.adopted = len(going) < len(op.attachments); o.adopted {
		o.kept = op.adopt(ctx, going)
	}
	// For networks that have nothing to attach ahead of time, a pool makes a namespace
	// without attachments.
	empty := !op.Damaged && len(op.Record.Attachments) == 0
	if len(going) > 0 || empty {
		o.err = op.finish(ctx, going)
		o.removed = o.err == nil
	}
	return o
}

// finish removes attachments whose removal has failed before, unless that was
// just now.
func (op *operation) finish(ctx context.Context, going attachments) error {
	for _, a := range going {
		n := a.entry()
		if n == nil {
			continue
		}
		if wait := n.RetryIn(time.Now()); wait > 0 {
			return fmt.Errorf("%w: in %v, after %d failures: %s", errNotYet, wait.Round(time.Second), n.Failures, n.LastError)
		}
	}
	return op.tearDown(context.WithoutCancel(ctx), going)
}

// lockedGrace is the time for which a container may be locked and still be
// recovered with the others. Calls that nothing holds up finish within it.
const lockedGrace = 250 * time.Millisecond

// beginRecovery locks the container. It returns ErrBusy if another call has it locked
// for lockedGrace; or, if the container comes last, for a longer grace by a live
// process, even a stopped one. In the latter case it kills plugins of a dead
// runtime.
func (s *snapshot) beginRecovery(ctx context.Context, host *hostns.NetNS, id record.ID, last bool) (*operation, error) {
	own, err := host.Dup()
	if err != nil {
		return nil, err
	}
	if last {
		return s.beginTeardownFrom(ctx, id, own, container.Access{Waiting: container.Hurried})
	}
	brief, cancel := context.WithTimeoutCause(ctx, lockedGrace, ErrBusy)
	defer cancel()
	return s.beginTeardownFrom(brief, id, own, container.Access{})
}

// going returns the attachments that Recover must remove: all, if the
// container's namespace is gone or it was nobody's container yet; else those on
// which no caller relies.
func (op *operation) going() (attachments, error) {
	if op.Damaged {
		// The log has neither boot nor path. Where mounts keep namespaces, a
		// missing mount is proof; elsewhere there is none.
		if op.Record != nil && op.Record.WasAttached() && (!op.Gone() || !op.Pins.WasMounted(op.ID)) {
			return nil, nil
		}
		return op.attachments, nil
	}
	if op.Gone() {
		return op.attachments, nil
	}
	if op.Record.Warm {
		return op.attachments, nil
	}
	return op.unfinished(), nil
}

// unfinished returns the attachments that a Remove has begun to remove, and
// those of an unfinished Setup, about which its caller has learned nothing.
func (op *operation) unfinished() attachments {
	return slices.DeleteFunc(slices.Clone(op.attachments), func(a *attachment) bool {
		return !op.Record.IsUnfinished(a.entry())
	})
}

// doubt returns the reason why the attachments are not known to be healthy, or
// nil.
func (op *operation) doubt(ctx context.Context, all attachments) error {
	if op.Damaged {
		return fmt.Errorf("it may live, and its record is damaged, so that it cannot be checked; call Remove if it is gone: %w", record.ErrBad)
	}
	if op.HostGone {
		return fmt.Errorf("the namespace %s that its plugins ran in is gone: %w", op.RecordedHost(), ErrHostNetNS)
	}
	if op.IsAbandoned() {
		return fmt.Errorf("%s no longer leads to its namespace, which is kept at %s: %w", op.Record.NetNS.Path, op.Path, ErrInvalidNetNS)
	}
	var errs []error
	for _, a := range all {
		live, err := a.isAlive(all)
		if err == nil && !live {
			err = fmt.Errorf("interface %s of network %q is gone: %w", a.IfName, a.network.config.Name, ErrNotAttached)
		}
		if err == nil {
			if c := a.chain(); c.CanCheck() {
				err = a.errors("CHECK", c.Check(ctx, &a.Attachment, a.partial))
			}
		}
		errs = append(errs, err)
	}
	return join(errs...)
}

// adopt keeps the container, and returns the reason why it is not known to be
// healthy, or nil.
func (op *operation) adopt(ctx context.Context, going attachments) error {
	staying := slices.DeleteFunc(slices.Clone(op.attachments), func(a *attachment) bool { return slices.Contains(going, a) })
	doubt := op.doubt(ctx, staying)
	if !op.Damaged && (op.Record.LetGo == nil || op.Reached == container.ByPath) {
		// Where mounts are not allowed, a descriptor of the last process kept it
		// alive.
		doubt = join(doubt, op.Pin())
	}
	if doubt != nil {
		op.logger.Warn("a container lives and is kept, but is not known to be healthy", "container", op.ID, "reason", doubt)
	}
	return doubt
}

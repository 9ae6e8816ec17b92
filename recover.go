package cni

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/embedcni/cni/internal/record"
)

// Report says what Recover or GC has done, by container ID.
type Report struct {
	Adopted []string // attached and alive: kept
	Removed []string // nothing is left of them that this owner attached
	// Kept are those of Adopted that are not known to be healthy, and why: CHECK
	// failed or could not be asked, the interface is gone, the path no longer
	// leads to the namespace. Recover has changed nothing of them. The caller
	// decides: Check tells more, Remove ends them.
	Kept map[string]error
	// Failed could not be removed and are still recorded. One that is adopted
	// as well is alive, and what could not be removed is an attachment beside
	// those it was set up with.
	Failed map[string]error
	// Skipped were left as they are, and why: another call has the container
	// locked, it cannot be told from here whether it lives, or its record cannot
	// be used, see RecordError. A record that names no container is listed as
	// "record" and the name of its file.
	Skipped map[string]error
	// Reclaimed is what GC has found of containers that are on no record any
	// more, a line each.
	Reclaimed []string
	// Left is what GC has found and must leave, as it may be somebody else's: a
	// line each that says what to do.
	Left []string
}

// outcome is what became of one container.
type outcome struct {
	id      string
	adopted bool
	kept    error // why it is adopted although it is not known to be healthy
	err     error // why it, or a part of it, could not be removed
	skipped error // why nothing was done
}

func (r *Report) add(o outcome) {
	set := func(m *map[string]error, err error) {
		if *m == nil {
			*m = make(map[string]error)
		}
		(*m)[o.id] = err
	}
	if o.adopted {
		r.Adopted = append(r.Adopted, o.id)
	}
	if o.kept != nil {
		set(&r.Kept, o.kept)
	}
	switch {
	case o.skipped != nil:
		set(&r.Skipped, o.skipped)
	case o.err != nil:
		set(&r.Failed, leftover(o.id, o.err))
	case !o.adopted:
		r.Removed = append(r.Removed, o.id)
	}
}

// Err joins the failures, or is nil. What was kept or skipped is no failure.
func (r *Report) Err() error {
	var errs []error
	for id, err := range r.Failed {
		errs = append(errs, fmt.Errorf("container %s: %w", id, err))
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return join(errs...)
}

// Recover is for a program's start. Each container that this owner has recorded
// is adopted if it was attached in this boot of the machine and its network
// namespace lives, reached by its path or where it is kept. One of which this is
// all that is known is in Report.Kept as well, with the reason: nothing is
// removed because a CHECK failed, timed out or could not be asked.
//
// Removed, as Remove does, are containers whose namespace is gone or of another
// boot, attachments that a Setup had not finished or a Remove had begun to
// remove, and containers that a pool of a dead process made ahead of time.
// Plugins that a dead runtime has left running are ended after a grace. A
// container that cannot be removed stays recorded, and is tried again after a
// while that grows with each failure.
//
// Containers are recovered in parallel. One that another call has locked comes
// last, and is in Report.Skipped if it stays so.
//
// The error is about what kept Recover from looking; what happened to each
// container is in the report.
func (r *Runtime) Recover(ctx context.Context) (*Report, error) {
	s := r.current.Load()
	if err := s.refuseInside(ctx); err != nil {
		return nil, fmt.Errorf("recover: %w", err)
	}
	report := &Report{}
	host, err := openHostNetNS(s.hostNetNS)
	if err != nil {
		return nil, fmt.Errorf("recover: %w", err)
	}
	found, err := s.owned(false)
	if err != nil {
		return nil, fmt.Errorf("recover: %w", join(err, host.close()))
	}
	err = s.recoverAll(ctx, host, found, report)
	if err == nil {
		err = s.tidyAlone()
	}
	if err = join(err, host.close()); err != nil {
		return report, fmt.Errorf("recover: %w", err)
	}
	return report, nil
}

// atOnce is how many containers are recovered at the same time. Most of it is
// waiting: for executables, and for the kernel to delete interfaces. Of those
// that were locked it is more, since each may stay locked for orphanGrace.
const atOnce, lockedAtOnce = 16, 64

// recoverAll recovers the containers, first those that nobody has locked.
func (s *snapshot) recoverAll(ctx context.Context, host *hostNetNS, found []record.Found, report *Report) error {
	var locked []string
	var ids []string
	for _, f := range found {
		if err := s.untouchable(f); err != nil {
			s.logger.Warn("a container is left alone", "record", f.File, "reason", err)
			report.add(outcome{id: nameOf(f), skipped: err})
			continue
		}
		if f.Record.ContainerID == "" {
			report.add(outcome{id: nameOf(f), err: s.discard(f)})
			continue
		}
		ids = append(ids, f.Record.ContainerID)
	}
	for _, last := range []bool{false, true} {
		for _, o := range s.recoverEach(ctx, host, ids, last) {
			if !last && errors.Is(o.skipped, ErrBusy) {
				locked = append(locked, o.id)
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

// recoverEach recovers containers in parallel, and returns the outcomes in
// order, those of the containers that it came to before ctx ended.
func (s *snapshot) recoverEach(ctx context.Context, host *hostNetNS, ids []string, last bool) []outcome {
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

// owned are the records with attachments of this owner, and those that do not
// say whose they are: nobody else will look after them.
func (s *snapshot) owned(dry bool) ([]record.Found, error) {
	found, err := s.records.List()
	if err != nil {
		return nil, err
	}
	return s.withoutWarm(slices.DeleteFunc(found, func(f record.Found) bool {
		unsure := f.Err != nil && (f.Record.Owner == "" || f.Record.Owner == s.owner)
		return !unsure && !f.Record.Owned(s.owner)
	}), dry)
}

// discard deletes a record of which nothing can be read, not even whose it is,
// and lets its namespace go. What else it was about is found by nobody; the log
// says so.
func (s *snapshot) discard(f record.Found) error {
	s.logger.Error("attachment record is unreadable and was deleted; what it recorded may be left", "file", f.File, "error", f.Err)
	if err := s.kept.discard(f.File); err != nil {
		return err
	}
	return s.records.Discard(f.File)
}

// errNotYet: it failed not long ago.
var errNotYet = errors.New("not tried again yet")

func (s *snapshot) recoverOne(ctx context.Context, host *hostNetNS, id string, last bool) (o outcome) {
	defer func() {
		if v := recover(); v != nil { // in this goroutine it would end the program
			o = outcome{id: id, err: fmt.Errorf("panic: %v\n%s", v, debug.Stack())}
		}
	}()
	o.id = id
	op, err := s.takeOver(ctx, host, id, last)
	if o.setAside(err) {
		return o
	}
	defer op.end()
	if o.setAside(op.recallOwn()) {
		return o
	}
	if op.rec == nil {
		return o // removed meanwhile, by whoever had it locked
	}
	going, err := op.going()
	if err != nil {
		o.err = err
		return o
	}
	if err := op.uncertain(); err != nil && len(going) < len(op.attachments) {
		o.skipped = err
		return o
	}
	if o.adopted = len(going) < len(op.attachments); o.adopted {
		o.kept = op.adopt(ctx, going)
	}
	// What a pool made for networks that have nothing to attach ahead of time is a
	// namespace without attachments.
	empty := !op.damaged && len(op.rec.Networks) == 0
	if len(going) > 0 || empty {
		o.err = op.finish(ctx, going)
	}
	return o
}

// setAside notes why nothing was done about the container, if err is not nil.
func (o *outcome) setAside(err error) bool {
	if isSkipped(err) {
		o.skipped = err
	} else {
		o.err = err
	}
	return err != nil
}

// adopt keeps the container, and returns why it is not known to be healthy.
func (op *operation) adopt(ctx context.Context, going []*attachment) error {
	staying := slices.DeleteFunc(slices.Clone(op.attachments), func(a *attachment) bool { return slices.Contains(going, a) })
	doubt := op.doubt(ctx, staying)
	if !op.damaged {
		// Where mounts are not allowed, the descriptor that kept it was the last
		// process's.
		doubt = join(doubt, op.pin(op.rec.NetNS))
	}
	if doubt != nil {
		op.logger.Warn("a container lives and is kept, but is not known to be healthy", "container", op.id, "reason", doubt)
	}
	return doubt
}

// finish removes attachments whose removal has failed before, but not soon after
// it has.
func (op *operation) finish(ctx context.Context, ill []*attachment) error {
	if op.rec != nil {
		for _, a := range ill {
			if err := notYet(op.rec.Find(a.IfName)); err != nil {
				return err
			}
		}
	}
	return op.tearDown(context.WithoutCancel(ctx), ill)
}

// notYet is an error as long as an attachment that failed to detach is not to
// be tried again: for a time that doubles from a second, to an hour at most. A
// Remove by the caller does not wait.
func notYet(n *record.Network) error {
	if n == nil || n.Failures == 0 || n.LastTry.After(time.Now()) {
		return nil // the clock was ahead: how long ago it failed is not known
	}
	delay := min(time.Second<<min(n.Failures-1, 12), time.Hour)
	wait := time.Until(n.LastTry.Add(delay))
	if wait <= 0 {
		return nil
	}
	return fmt.Errorf("%w: in %v, after %d failures: %s", errNotYet, wait.Round(time.Second), n.Failures, n.LastError)
}

// lockedGrace is how long a container may be locked and still be recovered with
// the others. Calls that nothing holds up are over by then.
const lockedGrace = 250 * time.Millisecond

// takeOver locks the container, unless somebody else has it locked, which is
// ErrBusy: for lockedGrace; or, if it comes last, for orphanGrace, in a process
// that lives, stopped though it be. Plugins of a dead runtime are ended then.
func (s *snapshot) takeOver(ctx context.Context, host *hostNetNS, id string, last bool) (*operation, error) {
	own, err := host.dup()
	if err != nil {
		return nil, err
	}
	if last {
		return s.beginTeardownFrom(withWaiting(ctx, hurried), id, own)
	}
	brief, cancel := context.WithTimeoutCause(ctx, lockedGrace, ErrBusy)
	defer cancel()
	return s.beginTeardownFrom(brief, id, own)
}

// going are the attachments that Recover is to remove: all, if the container's
// namespace is gone or it was nobody's container yet; else those that no caller
// counts on.
func (op *operation) going() ([]*attachment, error) {
	if op.gone() {
		return op.attachments, nil
	}
	if op.damaged {
		if op.attachedBefore() {
			return nil, nil
		}
		return op.attachments, nil
	}
	if op.rec.Warm {
		return op.attachments, nil
	}
	return op.unfinished(), nil
}

// attachedBefore reports whether the log of a damaged record says that the
// container was attached, and that no Remove has begun.
func (op *operation) attachedBefore() bool {
	return op.rec != nil && slices.ContainsFunc(op.rec.Networks, func(n record.Network) bool {
		return n.State == record.Added && n.Failures == 0
	})
}

// unfinished are the attachments that a Remove has begun with, and those of a
// Setup that has not got to its end: its caller never heard of any of them.
func (op *operation) unfinished() []*attachment {
	half := map[int]bool{}
	for _, n := range op.rec.Networks {
		if n.State == record.Planned {
			half[n.Call] = true
		}
	}
	var all []*attachment
	for _, a := range op.attachments {
		n := op.rec.Find(a.IfName)
		if n.State == record.Deleting || n.Failures > 0 || half[n.Call] {
			all = append(all, a)
		}
	}
	return all
}

// doubt is why the attachments are not known to be healthy, nil if they are.
func (op *operation) doubt(ctx context.Context, attachments []*attachment) error {
	if op.damaged {
		return fmt.Errorf("its namespace lives, and its record is damaged: %w", record.ErrBad)
	}
	if op.hostGone {
		return fmt.Errorf("the namespace %s that its plugins ran in is gone: %w", described(op.rec.Host, op.rec.HostPath), ErrHostNetNS)
	}
	if op.abandoned() {
		return fmt.Errorf("%s no longer leads to its namespace, which is kept at %s: %w", op.rec.NetNS.Path, op.path, ErrInvalidNetNS)
	}
	var errs []error
	for _, a := range attachments {
		live, err := a.lives(attachments)
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

package cni

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/embedcni/cni/internal/lock"
	"github.com/embedcni/cni/internal/orphan"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/netns"
)

// Report says what Recover or GC has done, by container ID.
type Report struct {
	Adopted []string // attached and alive: kept
	Removed []string // nothing is left of them
	// Failed could not be removed and are still recorded. One that is adopted
	// as well is alive, and what could not be removed is an attachment beside
	// those it was set up with.
	Failed map[string]error
	// Reclaimed is what GC has found of containers that are on no record any
	// more, a line each.
	Reclaimed []string
}

func (r *Report) add(id string, adopted bool, err error) {
	if adopted {
		r.Adopted = append(r.Adopted, id)
	}
	switch {
	case err != nil:
		if r.Failed == nil {
			r.Failed = make(map[string]error)
		}
		r.Failed[id] = err
	case !adopted:
		r.Removed = append(r.Removed, id)
	}
}

// Err joins the failures, or is nil.
func (r *Report) Err() error {
	var errs []error
	for id, err := range r.Failed {
		errs = append(errs, fmt.Errorf("container %s: %w", id, err))
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return join(errs...)
}

// Recover is for a program's start. Each container that this owner has recorded
// is adopted if it was attached in this boot of the machine, its namespace and
// interfaces are there, and its plugins' CHECK passes; else it is removed, as
// Remove does. Of one that is well, only those attachments are removed that a
// Setup of their own had not finished, or a Remove had begun to. Plugins that a killed runtime has left running are waited for a
// moment, then killed. A container that cannot be removed stays recorded, and
// is tried again after a while that grows with each failure.
//
// The error is about what kept Recover from looking; what happened to each
// container is in the report.
func (r *Runtime) Recover(ctx context.Context) (*Report, error) {
	s := r.current.Load()
	found, err := s.owned(false)
	if err != nil {
		return nil, fmt.Errorf("recover: %w", err)
	}
	report := &Report{}
	for _, f := range found {
		if err := ctx.Err(); err != nil {
			return report, fmt.Errorf("recover: %w", context.Cause(ctx))
		}
		if f.Record.ContainerID == "" {
			report.add("record "+f.File, false, s.discard(f))
			continue
		}
		adopted, err := s.recoverOne(ctx, f.Record.ContainerID)
		report.add(f.Record.ContainerID, adopted, err)
	}
	if err := s.tidyAlone(ctx); err != nil {
		return report, fmt.Errorf("recover: %w", err)
	}
	return report, nil
}

// tidyAlone is tidy with all others kept out, if there is anything to do. If
// one of them takes long it is left to the next Recover or GC.
func (s *snapshot) tidyAlone(ctx context.Context) error {
	files, err := s.records.Strays()
	pins, perr := s.kept.strays(s.records)
	made, dirs, merr := s.poolStrays()
	if len(files)+len(pins)+len(made)+len(dirs) == 0 {
		return join(err, perr, merr)
	}
	grace, cancel := context.WithTimeout(ctx, orphanGrace)
	defer cancel()
	held, err := s.locks.LockAll(grace, []lock.Key{{Name: barrier}})
	if err != nil {
		s.logger.Warn("files that belong to no record are left for later", "error", err)
		return nil
	}
	return join(s.tidy(), held.Release())
}

// tidy deletes what a process that was killed, or a power cut, left between two
// steps of writing or deleting a record. No ADD or DEL may be under way.
func (s *snapshot) tidy() error {
	files, err := s.records.Strays()
	pins, perr := s.kept.strays(s.records)
	made, dirs, merr := s.poolStrays()
	errs := []error{err, perr, merr}
	for _, path := range files {
		s.logger.Info("deleting a file that belongs to no record", "path", path)
		errs = append(errs, os.Remove(path))
	}
	for _, path := range append(pins, made...) {
		s.logger.Info("letting go of a namespace that belongs to no record", "path", path)
		errs = append(errs, netns.Remove(path))
	}
	for _, dir := range dirs {
		errs = append(errs, os.Remove(dir))
	}
	return join(errs...)
}

// owned are the records of this owner, and those so damaged that they say no
// owner: nobody else will look after them.
func (s *snapshot) owned(dry bool) ([]record.Found, error) {
	found, err := s.records.List()
	if err != nil {
		return nil, err
	}
	return s.withoutWarm(slices.DeleteFunc(found, func(f record.Found) bool {
		return f.Record.Owner != s.owner && (f.Err == nil || f.Record.Owner != "")
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

func (s *snapshot) recoverOne(ctx context.Context, id string) (adopted bool, err error) {
	op, err := s.takeOver(ctx, id)
	if err != nil {
		return false, err
	}
	defer op.end()
	if err := op.recall(&Namespace{id: id}); err != nil {
		return false, err
	}
	if op.rec == nil && !op.damaged {
		return false, nil // removed meanwhile, by whoever had it locked
	}
	ill, err := op.ill(ctx)
	if err != nil {
		return false, err
	}
	if adopted = !op.damaged && len(ill) < len(op.attachments); adopted {
		// Where mounts are not allowed, the descriptor that kept it was the last
		// process's.
		if err := op.pin(op.rec.NetNS); err != nil {
			return false, err
		}
	}
	if len(ill) == 0 && adopted {
		return true, nil
	}
	return adopted, op.finish(ctx, ill)
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
	if n == nil || n.Failures == 0 {
		return nil
	}
	delay := min(time.Second<<min(n.Failures-1, 12), time.Hour)
	wait := time.Until(n.LastTry.Add(delay))
	if wait <= 0 {
		return nil
	}
	return fmt.Errorf("%w: in %v, after %d failures: %s", errNotYet, wait.Round(time.Second), n.Failures, n.LastError)
}

// orphanGrace is how long plugins of a dead runtime may go on. What a plugin
// finishes by itself is tidier than what it is killed in.
const orphanGrace = 5 * time.Second

// takeOver locks the container. If it is locked by plugins whose runtime is
// dead, they are killed after a while; a runtime that lives is waited for.
func (s *snapshot) takeOver(ctx context.Context, id string) (*operation, error) {
	grace, cancel := context.WithTimeout(ctx, orphanGrace)
	defer cancel()
	op, err := s.beginTeardown(grace, id)
	if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
		return op, err
	}
	rec, lerr := s.records.Load(id)
	if lerr == nil && rec != nil {
		alive, err := s.runtimeAlive(rec)
		if err != nil {
			return nil, err
		}
		if !alive {
			killed, err := orphan.Kill(s.locks.Path(), id)
			s.logger.Warn("killed plugins of a dead runtime", "container", id, "processes", killed, "error", err)
		}
	}
	return s.beginTeardown(ctx, id)
}

// ill are the attachments that are to be removed: all, unless the container is
// there and well but for some that were meant to go.
func (op *operation) ill(ctx context.Context) ([]*attachment, error) {
	if op.damaged {
		return op.attachments, nil
	}
	now, err := op.bootID()
	if err != nil {
		return nil, err
	}
	if op.rec.Boot != now || op.abandoned() || op.rec.Warm {
		return op.attachments, nil
	}
	going := op.unfinished()
	staying := slices.DeleteFunc(slices.Clone(op.attachments), func(a *attachment) bool { return slices.Contains(going, a) })
	well, err := op.well(ctx, staying)
	if !well || err != nil {
		return op.attachments, err
	}
	return going, nil
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

// well tells whether the attachments are there and as their plugins want them.
func (op *operation) well(ctx context.Context, attachments []*attachment) (bool, error) {
	for _, a := range attachments {
		live, err := a.lives(attachments)
		if err != nil || !live {
			return false, err
		}
	}
	for _, a := range attachments {
		c := a.chain()
		if !c.CanCheck() {
			continue
		}
		if err := c.Check(ctx, &a.Attachment, a.partial); err != nil {
			if ctx.Err() != nil {
				return false, context.Cause(ctx)
			}
			if errors.Is(err, ErrPluginNotFound) {
				return false, err // nobody has said that anything is wrong with it
			}
			op.logger.Info("CHECK failed, removing the container", "container", op.id, "error", err)
			return false, nil
		}
	}
	return true, nil
}

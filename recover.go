package cni

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/embedcni/cni/internal/boot"
	"github.com/embedcni/cni/internal/lock"
	"github.com/embedcni/cni/internal/orphan"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/netns"
)

// Report says what Recover or GC has done, by container ID.
type Report struct {
	Adopted []string         // attached and alive: kept
	Removed []string         // nothing is left of them
	Failed  map[string]error // could not be removed; still recorded
}

func (r *Report) add(id string, adopted bool, err error) {
	switch {
	case err != nil:
		if r.Failed == nil {
			r.Failed = make(map[string]error)
		}
		r.Failed[id] = err
	case adopted:
		r.Adopted = append(r.Adopted, id)
	default:
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
// Remove does. Plugins that a killed runtime has left running are waited for a
// moment, then killed. A container that cannot be removed stays recorded, and
// is tried again after a while that grows with each failure.
//
// The error is about what kept Recover from looking; what happened to each
// container is in the report.
func (r *Runtime) Recover(ctx context.Context) (*Report, error) {
	s := r.current.Load()
	found, err := s.owned()
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
		if errors.Is(err, errNotYet) {
			err = fmt.Errorf("%w, after %d failures: %s", err, f.Record.Failures, f.Record.LastError)
		}
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
	if len(files)+len(pins) == 0 {
		return join(err, perr)
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
	errs := []error{err, perr}
	for _, path := range files {
		s.logger.Info("deleting a file that belongs to no record", "path", path)
		errs = append(errs, os.Remove(path))
	}
	for _, path := range pins {
		s.logger.Info("letting go of a namespace that belongs to no record", "path", path)
		errs = append(errs, netns.Remove(path))
	}
	return join(errs...)
}

// owned are the records of this owner, and those so damaged that they say no
// owner: nobody else will look after them.
func (s *snapshot) owned() ([]record.Found, error) {
	found, err := s.records.List()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(found, func(f record.Found) bool {
		return f.Record.Owner != s.owner && (f.Err == nil || f.Record.Owner != "")
	}), nil
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
	if !op.damaged {
		if adopted, err := op.adopt(ctx); adopted || err != nil {
			return adopted, err
		}
		if wait := retryAfter(op.rec); wait > 0 {
			return false, fmt.Errorf("%w: in %v", errNotYet, wait.Round(time.Second))
		}
	}
	return false, op.tearDown(context.WithoutCancel(ctx), op.attachments)
}

// retryAfter is how long to wait after failures to detach: doubling from a
// second, an hour at most. A Remove by the caller does not wait.
func retryAfter(rec *record.Record) time.Duration {
	if rec.Failures == 0 {
		return 0
	}
	wait := min(time.Second<<min(rec.Failures-1, 12), time.Hour)
	return time.Until(rec.LastTry.Add(wait))
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
		alive, err := orphan.Alive(rec.Runtime)
		if err != nil {
			return nil, fmt.Errorf("the runtime that worked on container %s: %w", id, err)
		}
		if !alive {
			killed, err := orphan.Kill(s.locks.Path(), id)
			s.logger.Warn("killed plugins of a dead runtime", "container", id, "processes", killed, "error", err)
		}
	}
	return s.beginTeardown(ctx, id)
}

// adopt tells whether the container is attached and well.
func (op *operation) adopt(ctx context.Context) (bool, error) {
	now, err := boot.ID()
	if err != nil {
		return false, err
	}
	if op.rec.Boot != now || op.abandoned() || op.rec.Failures > 0 {
		return false, nil
	}
	for _, a := range op.attachments {
		if a.state != record.Added {
			return false, nil
		}
		live, err := a.lives(op.attachments)
		if err != nil || !live {
			return false, err
		}
	}
	for _, a := range op.attachments {
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
	// Where mounts are not allowed, the descriptor that kept it was the last
	// process's.
	return true, op.pin(op.rec.NetNS)
}

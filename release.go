package cni

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/embedcni/cni/internal/lock"
	"github.com/embedcni/cni/internal/record"
)

// ReleaseOptions says what Release does.
type ReleaseOptions struct {
	// DryRun reports what would be released, and releases nothing.
	DryRun bool
}

// ReleaseReport says what Release has done, by container ID.
type ReleaseReport struct {
	// Released are go-cni's now: they are on record no more, and their namespaces
	// are not kept.
	Released []string
	// Refused are as they were, and why: a line for each thing that go-cni could
	// not do, with what to do about it. ErrBusy, ErrPluginNotFound, ErrNotFound (the
	// network is not loaded), ErrInvalidNetNS, ErrHostNetNS and *RecordError are
	// among the causes. A record that names no container is listed as "record" and
	// the name of its file.
	Refused map[string]error
}

// Err joins the refusals, or is nil.
func (r *ReleaseReport) Err() error {
	var errs []error
	for id, err := range r.Refused {
		errs = append(errs, fmt.Errorf("container %s: %w", id, err))
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return join(errs...)
}

// Release is for a program that goes back to go-cni. Of every container that this
// owner has attached it gives up the record, and the pin by which the network
// namespace is kept, and touches nothing else: no plugin runs, and traffic goes
// on. Without it go-cni would detach the container, and the pin would keep the
// namespace alive for ever. Afterwards the container is as if go-cni had attached
// it; as always, go-cni's Remove wants the options of the Setup.
//
// A container is refused if go-cni v1.1.14 could not remove it completely, by the
// networks that it loads, libcni's cache and the installed executables. So load
// the networks that go-cni will load, with the same plugin directories, and call
// from the network namespace in which go-cni will be called. Refused are containers
//
//   - whose network is not loaded under the same interface name with the same
//     configuration, or that were given options for one network alone;
//   - with a plugin that is not installed, was registered by WithPlugin, or lacks a
//     program that it deletes rules with;
//   - with rules in the table inet embedcni, where built-in plugins keep them
//     unless the configuration names a backend;
//   - whose namespace the recorded path no longer leads to, or that a Pool made;
//   - whose result is not in libcni's cache, for which go-cni knows no other place
//     than /var/lib/cni/results;
//   - that are attached or removed in part, dead since a reboot, another owner's
//     too, or whose record is damaged or a newer version's.
//
// Such a container stays as it was, and Remove ends it. Release may be repeated;
// containers released before are no longer listed. It waits for no other call:
// a container that is locked is refused with ErrBusy. When ctx ends, it stops. It
// returns an error if it could not look at the containers, or not make sure that a
// power cut brings no record back.
func (r *Runtime) Release(ctx context.Context, o ReleaseOptions) (*ReleaseReport, error) {
	s := r.current.Load()
	report := &ReleaseReport{}
	if err := s.release(ctx, o, report); err != nil {
		return report, fmt.Errorf("release: %w", err)
	}
	return report, nil
}

func (s *snapshot) release(ctx context.Context, o ReleaseOptions, report *ReleaseReport) (err error) {
	if err := join(s.refuseInside(ctx), s.ready()); err != nil {
		return err
	}
	host, err := openHostNetNS("") // go-cni has no other
	if err != nil {
		return err
	}
	defer func() { err = join(err, host.close()) }()
	if host.handle() == nil {
		return ErrNotSupported
	}
	found, err := s.records.List()
	if err != nil {
		return err
	}
	taken := takenOver(found)
	for _, f := range found {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
			break
		}
		if s.releases(f) && !(f.Record.Warm && taken[f.Record.Plugins()]) {
			report.add(s.releaseOne(ctx, host, f, o.DryRun))
		}
	}
	slices.Sort(report.Released)
	if len(report.Released) == 0 || o.DryRun {
		return err
	}
	return join(err, s.ledger().Sync().Wait(), s.records.SyncDeleted())
}

// releases reports whether a record has attachments of this owner, or does not
// say whose they are.
func (s *snapshot) releases(f record.Found) bool {
	unsure := f.Err != nil && (f.Record.Owner == "" || f.Record.Owner == s.owner)
	return unsure || f.Record.Owned(s.owner)
}

// released is what became of one container.
type released struct {
	id   string
	gone bool // removed since it was listed
	err  error
}

func (r *ReleaseReport) add(o released) {
	switch {
	case o.err != nil:
		if r.Refused == nil {
			r.Refused = make(map[string]error)
		}
		r.Refused[o.id] = o.err
	case !o.gone:
		r.Released = append(r.Released, o.id)
	}
}

func (s *snapshot) releaseOne(ctx context.Context, host *hostNetNS, f record.Found, dry bool) (o released) {
	o.id = nameOf(f)
	if o.err = s.untouchable(f); o.err != nil {
		return o
	}
	if f.Err != nil {
		o.err = fmt.Errorf("its record is damaged; Remove it: %w", f.Err)
		return o
	}
	op, err := s.beginRelease(ctx, host, f.Record.ContainerID)
	if err != nil {
		o.err = err
		return o
	}
	defer op.end()
	switch op.rec, err = op.loadRecord(op.id); {
	case err != nil:
		o.err = err
		return o
	case op.rec == nil:
		o.gone = true
		return o
	}
	if o.err = op.handedOver(ctx, host); o.err != nil || dry {
		return o
	}
	if o.err = op.giveUp(); o.err == nil {
		s.logger.Info("released a container to go-cni", "container", op.id)
	}
	return o
}

// beginRelease locks the container, unless another call has it locked. Without a
// lock between processes nothing is released.
func (s *snapshot) beginRelease(ctx context.Context, host *hostNetNS, id string) (*operation, error) {
	own, err := host.dup()
	if err != nil {
		return nil, err
	}
	op := &operation{snapshot: s, verb: "DEL", id: id, host: own}
	brief, cancel := context.WithTimeoutCause(ctx, lockedGrace, ErrBusy)
	defer cancel()
	if err := op.lock(brief); err != nil {
		if errors.Is(context.Cause(brief), ErrBusy) && !errors.Is(err, lock.ErrUnavailable) {
			err = fmt.Errorf("%w; call Release again", ErrBusy)
		}
		return nil, join(err, own.close())
	}
	return op, nil
}

// giveUp takes the container out of the ledger, so that GC takes none of it for
// garbage, lets its namespace go, and deletes the record. In this order a crash
// in between leaves a container on record, which Recover adopts and keeps again.
func (op *operation) giveUp() error {
	var lines []record.Line
	for _, a := range op.attachments {
		lines = append(lines, record.Line{Key: a.key(), Released: true})
	}
	if err := op.ledger().Add(lines...); err != nil {
		return err
	}
	err := op.unpin()
	if err == nil {
		err = op.records.Delete(op.id)
	}
	if err != nil {
		return join(err, op.pin(op.rec.NetNS)) // it stays on record
	}
	return nil
}

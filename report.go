package cni

import (
	"errors"
	"fmt"
	"slices"
	"strings"

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
		set(&r.Failed, leftover(record.ID(o.id), o.err))
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

// setAside notes why nothing was done about the container, if err is not nil.
func (o *outcome) setAside(err error) bool {
	if isSkipped(err) {
		o.skipped = err
	} else {
		o.err = err
	}
	return err != nil
}

// isSkipped reports whether an error means that nothing can be said of the
// container from here, so that Recover and GC leave it as it is.
func isSkipped(err error) bool {
	return errors.Is(err, ErrBusy) || errors.Is(err, ErrHostNetNS) ||
		errors.Is(err, errShared) || errors.As(err, new(*RecordError))
}

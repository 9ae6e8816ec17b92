package engine

import (
	"errors"
	"slices"

	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/outcome"
)

// fate is the outcome for one container.
type fate struct {
	id      string
	adopted bool
	removed bool   // all of this owner's attachments, or if adopted some
	kept    error  // reason why it is not known to be healthy; it is adopted
	err     error  // reason why it could not be removed, or a part of it
	skipped error  // reason why nothing was done
	left    string // a line for Left
	ending  bool   // it lives out of sight, perhaps not for long

	repaired []outcome.Difference
}

func (o fate) addTo(r *outcome.Report) {
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
	if o.repaired != nil {
		if r.Repaired == nil {
			r.Repaired = make(map[string][]outcome.Difference)
		}
		r.Repaired[o.id] = o.repaired
	}
	if o.left != "" {
		r.Left = append(r.Left, o.left)
	}
	switch {
	case o.skipped != nil:
		set(&r.Skipped, o.skipped)
	case o.err != nil:
		set(&r.Failed, leftover(record.ID(o.id), o.err))
	case o.removed && !o.adopted:
		r.Removed = append(r.Removed, o.id)
	}
}

// setAside notes the reason why nothing was done about the container, if err is
// not nil.
func (o *fate) setAside(err error) bool {
	if isSkipped(err) {
		o.skipped = err
	} else {
		o.err = err
	}
	return err != nil
}

// isSkipped reports whether an error means that the container's state is unknown
// here, so that Recover and GC leave it alone.
func isSkipped(err error) bool {
	return errors.Is(err, outcome.ErrBusy) || errors.Is(err, outcome.ErrHostNetNS) ||
		errors.Is(err, errShared) || errors.As(err, new(*outcome.RecordError))
}

// owned lists the records, and returns those with attachments of this owner, and those
// that name no owner, because nobody else looks after them; see mine.
func owned(eng *Engine, dry bool, report *outcome.Report) ([]record.Found, error) {
	found, err := eng.Store.Records.List()
	if err != nil {
		return nil, err
	}
	return mine(eng, found, dry, report)
}

// mine returns the records of this owner among all. It omits the containers that a pool
// of a live process has made ahead of time and, unless dry, deletes the records of those
// that have since been taken under another ID. It notes in the report, if there is one, that
// there are attachments of other owners, if nobody has chosen this one's name: the program
// may have had another name when it made them.
func mine(eng *Engine, found []record.Found, dry bool, report *outcome.Report) ([]record.Found, error) {
	if report != nil && !eng.opts.OwnerNamed {
		if report.OtherOwners = record.OtherOwners(found, eng.opts.Owner); len(report.OtherOwners) > 0 {
			eng.opts.Logger.Warn("attachments of other owners are left alone; the owner is the name of the executable, unless WithOwner sets it",
				"owner", eng.opts.Owner, "others", report.OtherOwners)
		}
	}
	own := slices.DeleteFunc(slices.Clone(found), func(f record.Found) bool { return !f.Concerns(eng.opts.Owner) })
	own, taken := record.Orphans(own, eng.Store.RuntimeAlive)
	for _, id := range taken {
		if dry {
			break
		}
		if err := eng.Store.Records.Delete(id); err != nil {
			return nil, err
		}
	}
	return own, nil
}

// untouchable returns why Recover and GC must leave the container of a listed
// record alone, or nil.
func untouchable(records *record.Store, f record.Found) error {
	if errors.Is(f.Err, record.ErrBad) {
		return nil
	}
	return AsRecordError(records, f.Record.ContainerID, f.File, f.Err)
}

// nameOf returns the name of a record in a report.
func nameOf(f record.Found) string {
	if f.Record.ContainerID == "" {
		return "record " + f.File
	}
	return string(f.Record.ContainerID)
}

// StateOf returns the progress of an attachment on record.
func StateOf(rec *record.Record, n *record.Attachment) outcome.AttachmentState {
	switch {
	case n.Failures > 0:
		return outcome.Failed
	case n.State == record.Deleting:
		return outcome.Detaching
	case n.State == record.Added:
		return outcome.Attached
	}
	return outcome.Attaching
}

package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/embedcni/cni/internal/store/record"
)

// Report is the outcome of a Recover, GC or RetryRemovals for each container; see cni.Report.
type Report struct {
	Adopted     []string
	Removed     []string
	Kept        map[string]error
	Repaired    map[string][]Difference `json:",omitempty"`
	Failed      map[string]error
	Skipped     map[string]error
	Reclaimed   []string
	Left        []string
	OtherOwners []string `json:",omitempty"`
}

// MarshalJSON encodes the report as an object with the names of its fields. Errors
// become their texts.
func (r Report) MarshalJSON() ([]byte, error) {
	type plain Report
	return json.Marshal(struct {
		plain
		Kept, Failed, Skipped map[string]string
	}{plain(r), texts(r.Kept), texts(r.Failed), texts(r.Skipped)})
}

// String has a line for each container and each leftover.
func (r Report) String() string {
	var lines []string
	for _, id := range r.Adopted {
		line := id + ": adopted"
		if why := r.Kept[id]; why != nil {
			line += ", not known to be healthy: " + why.Error()
		}
		lines = append(lines, line)
		for _, d := range r.Repaired[id] {
			lines = append(lines, id+": repaired: "+d.String())
		}
	}
	for _, id := range r.Removed {
		lines = append(lines, id+": removed")
	}
	for _, why := range []struct {
		what string
		of   map[string]error
	}{{"failed", r.Failed}, {"skipped", r.Skipped}} {
		for _, id := range slices.Sorted(maps.Keys(why.of)) {
			lines = append(lines, fmt.Sprintf("%s: %s: %v", id, why.what, why.of[id]))
		}
	}
	for _, line := range r.Reclaimed {
		lines = append(lines, "reclaimed: "+line)
	}
	for _, line := range r.Left {
		lines = append(lines, "left: "+line)
	}
	if len(r.OtherOwners) > 0 {
		lines = append(lines, "not examined: the attachments of other owners: "+strings.Join(r.OtherOwners, ", "))
	}
	return strings.Join(lines, "\n")
}

// Err joins the failures, or is nil. Kept and skipped containers are no
// failures. That of a nil Report is nil, so that errors.Join(err, report.Err()) has all
// that a call of Recover or GC has not done.
func (r *Report) Err() error {
	if r == nil {
		return nil
	}
	var errs []error
	for id, err := range r.Failed {
		errs = append(errs, fmt.Errorf("container %s: %w", id, err))
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return Join(errs...)
}

func texts(errs map[string]error) map[string]string {
	if errs == nil {
		return nil
	}
	all := make(map[string]string, len(errs))
	for id, err := range errs {
		all[id] = err.Error()
	}
	return all
}

// outcome is the result for one container.
type outcome struct {
	id      string
	adopted bool
	removed bool   // all of this owner's attachments, or if adopted some
	kept    error  // reason why it is not known to be healthy; it is adopted
	err     error  // reason why it could not be removed, or a part of it
	skipped error  // reason why nothing was done
	left    string // a line for Left
	ending  bool   // it lives out of sight, perhaps not for long

	repaired []Difference
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
	if o.repaired != nil {
		if r.Repaired == nil {
			r.Repaired = make(map[string][]Difference)
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
func (o *outcome) setAside(err error) bool {
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
	return errors.Is(err, ErrBusy) || errors.Is(err, ErrHostNetNS) ||
		errors.Is(err, errShared) || errors.As(err, new(*RecordError))
}

// owned lists the records, and returns those with attachments of this owner, and those
// that name no owner, because nobody else looks after them; see mine.
func owned(eng *Engine, dry bool, report *Report) ([]record.Found, error) {
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
func mine(eng *Engine, found []record.Found, dry bool, report *Report) ([]record.Found, error) {
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

// AttachmentState is the progress of an attachment; package cni documents it.
type AttachmentState string

const (
	Attaching AttachmentState = "attaching"
	Attached  AttachmentState = "attached"
	Detaching AttachmentState = "detaching"
	Failed    AttachmentState = "failed"
	Unknown   AttachmentState = "unknown"
)

// StateOf returns the progress of an attachment on record.
func StateOf(rec *record.Record, n *record.Attachment) AttachmentState {
	switch {
	case n.Failures > 0:
		return Failed
	case n.State == record.Deleting:
		return Detaching
	case n.State == record.Added:
		return Attached
	}
	return Attaching
}

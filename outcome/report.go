package outcome

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/embedcni/cni/internal/kernel/joined"
)

// AttachmentState is the progress of an attachment.
type AttachmentState string

const (
	// Attaching: plugins are running, or the runtime was killed while they did.
	Attaching AttachmentState = "attaching"
	// Attached: every plugin has answered.
	Attached AttachmentState = "attached"
	// Detaching: plugins are running, or the runtime was killed while they did, or it was
	// detached and stays on record because another attachment of the container failed.
	Detaching AttachmentState = "detaching"
	// Failed: detaching it failed. The next Remove, Recover or GC tries again.
	Failed AttachmentState = "failed"
	// Unknown: the record cannot be used, and LastError has the reason. Recover
	// and GC sweep a damaged record as far as it is legible, unless the container
	// may be alive. They leave alone a record that could not be read or that a
	// newer version wrote; see [RecordError].
	Unknown AttachmentState = "unknown"
)

// Report lists the containers that Recover or GC has looked at, by ID. Printed it has a line
// for each container and each leftover. Its JSON has the names of the fields, and the texts
// of errors.
type Report struct {
	Adopted []string // attached and alive: kept
	// Removed are the containers of which this call has removed this owner's
	// attachments, and verified that nothing of them remains.
	Removed []string
	// Kept are the containers in Adopted that are not known to be healthy, with
	// the reason: CHECK failed or could not run, the interface is gone, or the
	// path no longer leads to the namespace; see [Health], whose Err it is. The
	// caller decides: Check returns details, Remove removes them.
	Kept map[string]error
	// Repaired are the parts of containers in Adopted that were missing, and that
	// Recover has made again.
	Repaired map[string][]Difference `json:",omitempty"`
	// Failed could not be removed and are still recorded. A container that is
	// also in Adopted is alive; an attachment besides those of its Setup could
	// not be removed.
	Failed map[string]error
	// Skipped were not changed, with the reason: another call has the container
	// locked, it is unknown whether the container is alive, or its record cannot
	// be used; see [RecordError]. A record that names no container is listed as
	// "record" and the name of its file.
	Skipped map[string]error
	// Reclaimed has a line for each leftover that GC found of containers that are
	// no longer on record.
	Reclaimed []string
	// Left has a line for each leftover that GC found but must not remove,
	// because it may belong to somebody else, and for each record that Recover deleted
	// because it says nothing. Each line says what to do.
	Left []string
	// OtherOwners are the other owners of attachments, which this call has left alone.
	// It is set only if WithOwner was not given; see there.
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
			lines = append(lines, id+": made again: "+d.String())
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
			lines = append(lines, fmt.Sprintf("%s: %s: %s", id, why.what, textOn(id, why.of[id])))
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
		if _, named := err.(*LeftoverError); !named {
			err = joined.Errorf("container %s: %w", id, err)
		}
		errs = append(errs, err)
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return joined.Errors(errs...)
}

// textOn returns the text of an error in a line that begins with the container.
func textOn(id string, err error) string {
	if e, ok := err.(*LeftoverError); ok && e.ContainerID == id {
		return e.what()
	}
	return err.Error()
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

// RepairReport is the outcome of Repair for one container. Printed it has a line for each
// thing that was missing, or is. Its JSON has the names of the fields, and the texts of
// errors.
type RepairReport struct {
	ContainerID string
	Repaired    []Difference // were missing, and are there again
	Remaining   []Remaining
	// Unknown has an [*Error] for each part that could not be judged: the attachment is
	// being made or removed, the comparison failed, or the CHECK of a plugin that is not
	// built in failed and may be right. It is [ErrNotRepairable] unless another attempt may
	// succeed.
	Unknown []error
}

// Remaining is a part that is missing or different after a repair.
type Remaining struct {
	Difference
	// Reason is [ErrNotRepairable], [ErrInContainer], [ErrHeld], the [*Error] of a repair that
	// failed, or that RepairOptions.Want has not chosen it.
	Reason error
}

// Err returns nil if the container is known to be as its Setup made it, and otherwise
// all reasons.
func (r *RepairReport) Err() error {
	var errs []error
	for _, left := range r.Remaining {
		errs = append(errs, joined.Errorf("%s: %w", left.what(), left.Reason))
	}
	return joined.Errors(append(errs, r.Unknown...)...)
}

// String has a line for each thing that was missing, or is.
func (r *RepairReport) String() string {
	var lines []string
	for _, d := range r.Repaired {
		lines = append(lines, fmt.Sprintf("%s: made again: %v", r.ContainerID, d))
	}
	for _, left := range r.Remaining {
		lines = append(lines, fmt.Sprintf("%s: remains: %s: %v", r.ContainerID, left.what(), left.Reason))
	}
	for _, err := range r.Unknown {
		lines = append(lines, fmt.Sprintf("%s: unknown: %v", r.ContainerID, err))
	}
	return strings.Join(lines, "\n")
}

// MarshalJSON encodes the report as an object with the names of its fields. Errors
// become their texts.
func (r *RepairReport) MarshalJSON() ([]byte, error) {
	type plain RepairReport
	unknown := []string{}
	for _, err := range r.Unknown {
		unknown = append(unknown, err.Error())
	}
	return json.Marshal(struct {
		plain
		Unknown []string
	}{plain(*r), unknown})
}

// MarshalJSON encodes the difference with its reason as text.
func (r Remaining) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Difference Difference
		Reason     string
	}{r.Difference, textOf(r.Reason)})
}

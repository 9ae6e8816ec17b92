package cni

import (
	"errors"
	"fmt"

	"github.com/embedcni/cni/internal/record"
)

// RecordError means that a container's attachment record cannot be used: a newer
// version of this package wrote it, or the file could not be opened or read. The
// container may be alive, so no call changes anything about it. A damaged
// record, which was read to its end, is no RecordError.
type RecordError struct {
	ContainerID string // empty if only the record contains it
	Path        string // the record's path
	Newer       bool   // a newer version wrote it; otherwise it could not be read
	Err         error
}

// Error names the remedy.
func (e *RecordError) Error() string {
	of := ""
	if e.ContainerID != "" {
		of = " of container " + e.ContainerID
	}
	if e.Newer {
		return fmt.Sprintf("record%s: %v; nothing was changed: use the version that wrote it, or a newer one", of, e.Err)
	}
	return fmt.Sprintf("record%s: %v; nothing was changed: try again when the file can be read, or delete it if the container is gone",
		of, e.Err)
}

// Unwrap returns the cause.
func (e *RecordError) Unwrap() error { return e.Err }

// loadRecord loads a record. The error is a RecordError unless the record is
// damaged.
func (s *snapshot) loadRecord(id record.ID) (*record.Record, error) {
	rec, err := s.Records.Load(id)
	return rec, s.recordError(id, record.Name(id), err)
}

// recordError returns the RecordError for a record that is newer or could not be
// read.
func (s *snapshot) recordError(id record.ID, file string, err error) error {
	newer := errors.Is(err, record.ErrNewer)
	if !newer && !errors.Is(err, record.ErrUnread) {
		return err
	}
	return &RecordError{ContainerID: string(id), Path: s.Records.Path(file), Newer: newer, Err: err}
}

// untouchable returns why Recover and GC must leave the container of a listed
// record alone, or nil.
func (s *snapshot) untouchable(f record.Found) error {
	if errors.Is(f.Err, record.ErrBad) {
		return nil
	}
	return s.recordError(f.Record.ContainerID, f.File, f.Err)
}

// nameOf returns the name of a record in a report.
func nameOf(f record.Found) string {
	if f.Record.ContainerID == "" {
		return "record " + f.File
	}
	return string(f.Record.ContainerID)
}

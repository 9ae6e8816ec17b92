package engine

import "github.com/embedcni/cni/internal/record"

// AttachmentState is the progress of an attachment; package cni documents it.
type AttachmentState string

const (
	Attaching AttachmentState = "attaching"
	Attached  AttachmentState = "attached"
	Detaching AttachmentState = "detaching"
	Failed    AttachmentState = "failed"
	Unknown   AttachmentState = "unknown"
)

// stateOf returns the progress of an attachment on record.
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

package cni

import (
	"errors"
	"fmt"
	"slices"
)

// recallOwn is recall for Recover and GC: only the attachments of this owner,
// and none if the record was deleted meanwhile.
func (op *operation) recallOwn() error {
	if err := op.recall(&Namespace{id: op.id}); err != nil {
		return err
	}
	switch {
	case op.rec == nil:
		op.attachments = nil
	case !op.damaged:
		op.attachments = slices.DeleteFunc(op.attachments, func(a *attachment) bool { return !a.own() })
	case op.container == nil && op.path != "":
		return fmt.Errorf("the container's network namespace at %s cannot be opened", op.path)
	case op.rec.Shared() || op.rec.Owner != "" && op.rec.Owner != op.owner:
		return fmt.Errorf("record of container %s: %w", op.id, errShared)
	}
	return nil
}

// errShared: a damaged record does not say which attachments are this owner's.
var errShared = errors.New("it is damaged, and has attachments of another owner; call Remove if the container is gone")

// own reports whether this owner has made the attachment, which is on record.
func (a *attachment) own() bool {
	n := a.op.rec.Find(a.IfName)
	return n != nil && a.op.rec.OwnerOf(n) == a.op.owner
}

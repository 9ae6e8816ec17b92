package cni

import (
	"context"
	"fmt"
	"maps"

	"github.com/embedcni/cni/internal/record"
)

// maxMetadata limits the metadata of one attachment: the record is read by every call
// for the container, and all records by Recover and GC.
const maxMetadata = 4096

// WithMetadata has Setup keep values of the caller's in the record of each attachment,
// for example the name of a pod: [Runtime.Attachments] returns them. No plugin sees
// them. All keys and values of one attachment may take 4096 bytes together, and a key
// must not be empty. Other calls than Setup ignore it. Values that are known only later
// are for [Runtime.SetMetadata].
func WithMetadata(values map[string]string) NamespaceOpts {
	return give(func(ns *Namespace) { maps.Copy(ns.metadata, values) })
}

// checkMetadata refuses metadata that is no small map.
func checkMetadata(values map[string]string) error {
	size := 0
	for k, v := range values {
		if k == "" {
			return fmt.Errorf("metadata with an empty key: %w", ErrInvalidArgument)
		}
		size += len(k) + len(v)
	}
	if size > maxMetadata {
		return fmt.Errorf("metadata of %d bytes, %d are allowed: %w", size, maxMetadata, ErrInvalidArgument)
	}
	return nil
}

// SetMetadata adds values of the caller's to the record of each attachment of the
// container that this owner has made: those that are known only after the Setup, such as
// the process ID of the container's task. They replace those of the same keys, and are
// otherwise as those of WithMetadata. They survive the process, and end with the record.
//
// Each call that changes something adds a line to the record, which the next Setup of the
// container makes short again: SetMetadata is not for values that change all the time.
//
// The error is ErrNotAttached if this owner has not attached the container. A damaged
// record is an error too. With ErrInvalidArgument nothing was changed. SetMetadata waits
// for other calls for the container. It is safe for concurrent use.
func (r *Runtime) SetMetadata(ctx context.Context, id string, values map[string]string) error {
	s := r.current.Load()
	if err := s.setMetadata(ctx, record.ID(id), values); err != nil {
		return fmt.Errorf("set metadata of container %q: %w", id, err)
	}
	return nil
}

func (s *snapshot) setMetadata(ctx context.Context, id record.ID, values map[string]string) error {
	op, err := s.beginRepair(ctx, id, true)
	if err != nil {
		return err
	}
	defer op.end()
	if err = op.loadWhole(); err == nil && (op.c.Record == nil || op.c.Record.Warm) {
		err = ErrNotAttached
	}
	if err != nil {
		return err
	}
	var own []*record.Attachment
	for n := range op.c.Record.Present() {
		if !n.Answered() || op.c.Record.OwnerOf(n) != s.opts.owner {
			continue
		}
		if err := checkMetadata(merge(n.Metadata, values)); err != nil {
			return err
		}
		own = append(own, n)
	}
	if own == nil {
		return ErrNotAttached
	}
	for _, n := range own {
		if maps.Equal(n.Metadata, merge(n.Metadata, values)) {
			continue
		}
		if err := op.c.Note(record.Entry{IfName: n.IfName, Metadata: values}); err != nil {
			return err
		}
	}
	return nil
}

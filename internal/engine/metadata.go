package engine

import (
	"context"
	"fmt"
	"maps"

	"github.com/embedcni/cni/internal/record"
)

// maxMetadata limits the metadata of one attachment: the record is read by every call
// for the container, and all records by Recover and GC.
const maxMetadata = 4096

// checkMetadata refuses metadata that is no small map.
func CheckMetadata(values map[string]string) error {
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

func (eng *Engine) SetMetadata(ctx context.Context, id record.ID, values map[string]string) error {
	op, err := eng.beginRepair(ctx, id, true)
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
		if !n.Answered() || op.c.Record.OwnerOf(n) != eng.opts.Owner {
			continue
		}
		if err := CheckMetadata(Merge(n.Metadata, values)); err != nil {
			return err
		}
		own = append(own, n)
	}
	if own == nil {
		return ErrNotAttached
	}
	for _, n := range own {
		if maps.Equal(n.Metadata, Merge(n.Metadata, values)) {
			continue
		}
		if err := op.c.Note(record.Entry{IfName: n.IfName, Metadata: values}); err != nil {
			return err
		}
	}
	return nil
}

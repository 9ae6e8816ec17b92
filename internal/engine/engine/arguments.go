package engine

import (
	"context"
	"fmt"
	"maps"
	"strings"

	"github.com/containernetworking/cni/pkg/utils"

	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/outcome"
)

// maxCacheName is the longest file name of the usual file systems. libcni caches a
// result in a file called <network>-<container>-<interface>.
const maxCacheName = 255

// ValidateID checks a container ID: a letter or digit, then letters, digits,
// '_', '.', '-' (CNI specification 1.1.0, section 2).
func ValidateID(id record.ID) error {
	if id == "" {
		return fmt.Errorf("the container ID is empty: %w", outcome.ErrInvalidArgument)
	}
	if utils.ValidateContainerID(string(id)) != nil {
		return fmt.Errorf("container ID %q has invalid characters: %w", id, outcome.ErrInvalidArgument)
	}
	if len(id) > maxCacheName {
		return fmt.Errorf("container ID of %d bytes is too long: %w", len(id), outcome.ErrInvalidArgument)
	}
	return nil
}

// ValidateAttachmentName checks the interface name of an attachment, which an
// earlier version may have made, and that libcni can cache its result.
func ValidateAttachmentName(network, id, ifName string) error {
	if err := utils.ValidateInterfaceName(ifName); err != nil {
		return fmt.Errorf("interface %q: %w: %w", ifName, err, outcome.ErrInvalidArgument)
	}
	if n := len(network) + len(id) + len(ifName) + 2; n > maxCacheName {
		return fmt.Errorf("network %q, container ID and interface name take %d bytes together, %d are allowed: %w",
			network, n, maxCacheName, outcome.ErrInvalidArgument)
	}
	return nil
}

// ValidateIfName checks the name of a new interface. The kernel replaces "%d" by a
// number (dev_alloc_name), and the interface would have another name than in the
// record and in the plugins' requests.
func ValidateIfName(name string) error {
	if err := utils.ValidateInterfaceName(name); err != nil {
		return fmt.Errorf("%w: %w", err, outcome.ErrInvalidArgument)
	}
	if strings.Contains(name, "%") {
		return fmt.Errorf("the kernel replaces %%d by a number and takes no other '%%': %w", outcome.ErrInvalidArgument)
	}
	return nil
}

// maxMetadata limits the metadata of one attachment: the record is read by every call
// for the container, and all records by Recover and GC.
const maxMetadata = 4096

// CheckMetadata refuses metadata that is no small map.
func CheckMetadata(values map[string]string) error {
	size := 0
	for k, v := range values {
		if k == "" {
			return fmt.Errorf("metadata with an empty key: %w", outcome.ErrInvalidArgument)
		}
		size += len(k) + len(v)
	}
	if size > maxMetadata {
		return fmt.Errorf("metadata of %d bytes, %d are allowed: %w", size, maxMetadata, outcome.ErrInvalidArgument)
	}
	return nil
}

// SetMetadata adds values to the metadata of this owner's attachments of a container.
func (eng *Engine) SetMetadata(ctx context.Context, id record.ID, values map[string]string) error {
	op, err := eng.beginRepair(ctx, id, true)
	if err != nil {
		return err
	}
	defer op.end()
	if err = op.loadWhole(); err == nil && (op.c.Recorded.Record == nil || op.c.Recorded.Record.Warm) {
		err = outcome.ErrNotAttached
	}
	if err != nil {
		return err
	}
	var own []*record.Attachment
	for n := range op.c.Recorded.Record.Present() {
		if !n.Answered() || op.c.Recorded.Record.OwnerOf(n) != eng.opts.Owner {
			continue
		}
		if err := CheckMetadata(Merge(n.Metadata, values)); err != nil {
			return err
		}
		own = append(own, n)
	}
	if own == nil {
		return outcome.ErrNotAttached
	}
	for _, n := range own {
		if maps.Equal(n.Metadata, Merge(n.Metadata, values)) {
			continue
		}
		if err := op.c.Recorded.Note(record.Entry{IfName: n.IfName, Metadata: values}); err != nil {
			return err
		}
	}
	return nil
}

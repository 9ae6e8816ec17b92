package cni

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/observed"
	"github.com/embedcni/cni/internal/record"
)

// RefreshOptions configures Refresh.
type RefreshOptions struct {
	// Note notes the addresses in the container's record, so that Lookup, LookupAddr and
	// Attachments return them, in each process and after a restart, until they are noted
	// again.
	Note bool
}

// Refresh returns the Result of a container's Setup, as Lookup does, but with the
// addresses that its interfaces have now: those of SLAAC and DHCP come after the ADD, and
// change. An address of the ADD that is gone is not among them. Addresses in use count;
// one that the kernel still examines for duplicates (RFC 4862, section 5.4) is not yet.
// Loopback and link-local addresses count only if the ADD reported them. The gateway of an
// address that the ADD did not report is that of the default route.
//
// Everything else goes by the result of the ADD as before, also after the addresses have
// been noted: plugins get it as prevResult, Health and Repair compare it, and what Remove,
// Recover and GC release or remove is found by it. No ADD of this library has made the
// other addresses.
//
// The error is ErrNotAttached if the container, its namespace or one of its interfaces is
// not there. A damaged record is an error too. Refresh waits for other calls for the
// container. It is safe for concurrent use.
func (r *Runtime) Refresh(ctx context.Context, id string, o RefreshOptions) (*Result, error) {
	s := r.current.Load()
	result, err := s.refresh(ctx, record.ID(id), o)
	if err != nil {
		return nil, fmt.Errorf("refresh container %q: %w", id, err)
	}
	return result, nil
}

func (s *snapshot) refresh(ctx context.Context, id record.ID, o RefreshOptions) (*Result, error) {
	op, err := s.beginRecorded(ctx, id)
	if err != nil {
		return nil, err
	}
	defer op.end()
	namespace, err := op.observe()
	if err != nil {
		return nil, err
	}
	var sources []source
	for i := range op.Record.Attachments {
		n := &op.Record.Attachments[i]
		result := chain.Decode(n.Result)
		if !n.Answered() || result == nil {
			continue
		}
		found, err := observed.In(namespace, result, n.IfName)
		if errors.As(err, new(*observed.MissingError)) {
			err = fmt.Errorf("%w: %w", err, ErrNotAttached)
		}
		if err != nil {
			return nil, fmt.Errorf("network %q: %w", n.Network, err)
		}
		now := &record.Observed{Time: time.Now().UTC(), Addresses: found}
		if o.Note && !isNoted(n.Observed, now) {
			if err := op.Note(record.Entry{IfName: n.IfName, Observed: now}); err != nil {
				return nil, err
			}
		}
		sources = append(sources, source{n.Network, n.IfName, observed.Apply(result, n.IfName, now), recordedMappings(n)})
	}
	if sources == nil {
		return nil, ErrNotAttached
	}
	return s.lookedUp(op.Record, sources)
}

// isNoted reports whether the addresses are on record already. The record would grow with
// each note.
func isNoted(before, now *record.Observed) bool {
	return before != nil && slices.Equal(before.Addresses, now.Addresses)
}

// beginRecorded locks a container and reads its record, which must be whole.
func (s *snapshot) beginRecorded(ctx context.Context, id record.ID) (*operation, error) {
	op, err := s.beginRepair(ctx, id)
	if err != nil {
		return nil, err
	}
	damage, err := op.load()
	if err == nil {
		err = damage
	}
	if err == nil && (op.Record == nil || op.Record.Warm) {
		err = ErrNotAttached
	}
	if err != nil {
		op.end()
		return nil, err
	}
	return op, nil
}

// observe reads the container's namespace.
func (op *operation) observe() (map[string]observed.Interface, error) {
	if err := op.EnterRecorded(false); err != nil {
		return nil, err
	}
	gone, err := op.OutOfReach()
	if gone {
		err = fmt.Errorf("%w: %w", err, ErrNotAttached)
	}
	if err != nil {
		return nil, err
	}
	return observed.Read(op.NetNS)
}

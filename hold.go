package cni

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/embedcni/cni/internal/hold"
	"github.com/embedcni/cni/internal/lock"
	"github.com/embedcni/cni/internal/record"
)

// Hold names something that a guard and Recover do not repair: a container, a network with
// all its containers, or, if both are set, a container's attachment to a network.
type Hold struct {
	ContainerID string
	Network     string
	Reason      string // for people

	// Owner and Since are set by Hold: who asked for it, and when.
	Owner string
	Since time.Time
}

// Hold stops the repairs of a container or a network by guards and Recover, in this process
// and in others with the same state directory, until Unhold. It is for an administrator
// who takes something away deliberately. It survives restarts of the program and of the
// machine. Holding again replaces the reason.
//
// If a held part is missing, Health and Recover report it as always, and a guard
// reports guard.Held. Repair ignores holds, unless RepairOptions.Unheld is set: it is as
// deliberate as the Hold.
//
// Hold waits for repairs under way, so that neither a guard nor Recover repairs anything
// after Hold has returned. The hold of a container ends with the container; the hold of a
// network stays, whether or not the network is loaded. The error is ErrNotAttached if the
// container, or its attachment to the network, is not on record, and ErrInvalidArgument
// if h names neither.
func (r *Runtime) Hold(ctx context.Context, h Hold) error {
	s := r.current.Load()
	if err := s.hold(ctx, h); err != nil {
		return fmt.Errorf("hold %s: %w", h, err)
	}
	return nil
}

// Unhold ends a Hold of the same container and network. The error is ErrNotHeld if there
// is none.
func (r *Runtime) Unhold(ctx context.Context, h Hold) error {
	s := r.current.Load()
	held, err := s.lockHolds(ctx, false)
	if err != nil {
		return fmt.Errorf("unhold %s: %w", h, err)
	}
	there, err := s.holds().Delete(hold.Hold{Container: record.ID(h.ContainerID), Network: h.Network})
	if err == nil && !there {
		err = ErrNotHeld
	}
	if err = join(err, held.Release()); err != nil {
		return fmt.Errorf("unhold %s: %w", h, err)
	}
	return nil
}

// Holds returns the holds of every owner, in the order of time. With an error some
// holds cannot be read. Such a hold holds the container or network that it was made for,
// until Unhold or the end of the container.
func (r *Runtime) Holds() ([]Hold, error) {
	s := r.current.Load()
	found, err := s.holds().List()
	var all []Hold
	for _, h := range found {
		if h.Err() != nil {
			err = join(err, h.Err())
			continue
		}
		if h.Container != "" && !s.isCurrent(h) {
			continue // of an earlier container of that ID
		}
		all = append(all, Hold{string(h.Container), h.Network, h.Reason, h.Owner, h.Since})
	}
	slices.SortFunc(all, func(a, b Hold) int { return a.Since.Compare(b.Since) })
	if err != nil {
		err = fmt.Errorf("holds: %w", err)
	}
	return all, err
}

// String names the container and the network.
func (h Hold) String() string {
	switch {
	case h.Network == "":
		return fmt.Sprintf("container %q", h.ContainerID)
	case h.ContainerID == "":
		return fmt.Sprintf("network %q", h.Network)
	}
	return fmt.Sprintf("container %q on network %q", h.ContainerID, h.Network)
}

func (s *snapshot) holds() hold.Store { return hold.Open(filepath.Join(s.own, "holds")) }

// isCurrent reports whether a hold is of the container that is on record, or may be.
func (s *snapshot) isCurrent(h hold.Hold) bool {
	rec, err := s.Records.Load(h.Container)
	return err != nil || rec != nil && rec.Since.Equal(h.Attached)
}

// holdsKey keeps holds from being changed while something is repaired by itself.
const holdsKey = "holds"

// lockHolds waits until no hold is being changed, if shared, or until nothing is being
// repaired by itself.
func (s *snapshot) lockHolds(ctx context.Context, shared bool) (*lock.Held, error) {
	if err := s.refuseInside(ctx); err != nil {
		return nil, err
	}
	return s.Locks.LockAll(ctx, []lock.Key{{Name: holdsKey, Shared: shared}})
}

func (s *snapshot) hold(ctx context.Context, h Hold) (err error) {
	if h.ContainerID == "" && h.Network == "" {
		return fmt.Errorf("%w: it names neither a container nor a network", ErrInvalidArgument)
	}
	held, err := s.lockHolds(ctx, false)
	if err != nil {
		return err
	}
	defer func() { err = join(err, held.Release()) }()
	put := hold.Hold{Network: h.Network, Reason: h.Reason, Owner: s.owner, Since: time.Now().UTC()}
	if h.ContainerID != "" {
		id := record.ID(h.ContainerID)
		if err := validateID(id); err != nil {
			return err
		}
		rec, err := s.Records.Load(id)
		if err != nil {
			return recordError(s.Records, id, record.Name(id), err)
		}
		if rec == nil || h.Network != "" && !slices.ContainsFunc(rec.Attachments, func(n record.Attachment) bool {
			return n.Network == h.Network && n.State != record.Deleted
		}) {
			return ErrNotAttached
		}
		put.Container, put.Attached = id, rec.Since
	}
	return s.holds().Put(put)
}

// isHeld reports whether a container's attachment to a network is held.
func isHeld(holds []hold.Hold, rec *record.Record, network string) bool {
	return slices.ContainsFunc(holds, func(h hold.Hold) bool { return h.Holds(rec, network) })
}

// forgetHolds deletes the holds of a container that is gone. If that fails, a later
// container of the same ID is not held.
func (s *snapshot) forgetHolds(id record.ID, gone attachments) {
	var networks []string
	for _, a := range gone {
		networks = append(networks, a.network.config.Name)
	}
	if err := s.holds().Forget(id, networks...); err != nil {
		s.logger.Warn("delete the holds of a removed container", "container", id, "error", err)
	}
}

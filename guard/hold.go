package guard

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/run/runner"
	"github.com/embedcni/cni/internal/store/lock"
	"github.com/embedcni/cni/internal/store/record"
)

// Hold names something that a guard and Recover do not repair: a container, a network with
// all its containers, or, if both are set, a container's attachment to a network.
type Hold struct {
	ContainerID string
	Network     string
	Reason      string // for people

	// Owner and Since are set by Begin: who asked for it, and when.
	Owner string
	Since time.Time
}

// ErrNotHeld is the error of End for something that is not held.
var ErrNotHeld = errors.New("not held")

// Begin stops the repairs of a container or a network by guards and Recover, in this
// process and in others with the same state directory, until End. It is for an
// administrator who takes something away deliberately. It survives restarts of the program
// and of the machine. Beginning again replaces the reason.
//
// If a held part is missing, Health and Recover report it as always, and a guard reports
// Held. Repair ignores holds, unless cni.RepairOptions.Unheld is set: it is as deliberate
// as the hold.
//
// Begin waits for repairs under way, so that neither a guard nor Recover repairs anything
// after it has returned. The hold of a container ends with the container; the hold of a
// network stays, whether or not the network is loaded. The error is cni.ErrNotAttached if
// the container, or its attachment to the network, is not on record, and
// cni.ErrInvalidArgument if h names neither.
func (h Hold) Begin(ctx context.Context, rt *cni.Runtime) error {
	c := rt.GetConfig()
	put := record.Hold{Network: h.Network, Reason: h.Reason, Owner: c.Owner, Since: time.Now().UTC()}
	err := change(ctx, c.StateDir, func(s record.Holds) (err error) {
		if h.ContainerID != "" {
			put.Container = record.ID(h.ContainerID)
			put.Attached, err = h.attached(rt)
		} else if h.Network == "" {
			err = fmt.Errorf("%w: it names neither a container nor a network", cni.ErrInvalidArgument)
		}
		if err != nil {
			return err
		}
		return s.Put(put)
	})
	if err != nil {
		return fmt.Errorf("hold %s: %w", h, err)
	}
	return nil
}

// attached returns since when the container of the hold is attached.
func (h Hold) attached(rt *cni.Runtime) (since time.Time, err error) {
	all, err := rt.Attachments(h.ContainerID)
	if err != nil {
		return since, err
	}
	for _, a := range all {
		if a.State == cni.Unknown {
			return since, fmt.Errorf("its record cannot be used: %s", a.LastError)
		}
		if h.Network == "" || a.Network == h.Network {
			return a.Since, nil
		}
	}
	return since, cni.ErrNotAttached
}

// End ends a hold of the same container and network. The error is [ErrNotHeld] if there is
// none.
func (h Hold) End(ctx context.Context, rt *cni.Runtime) error {
	err := change(ctx, rt.GetConfig().StateDir, func(s record.Holds) error {
		there, err := s.Delete(record.Hold{Container: record.ID(h.ContainerID), Network: h.Network})
		if err == nil && !there {
			err = ErrNotHeld
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("unhold %s: %w", h, err)
	}
	return nil
}

// change changes the holds of a state directory, while nothing is being repaired by itself.
func change(ctx context.Context, stateDir string, do func(record.Holds) error) (err error) {
	locks := lock.Open(filepath.Join(stateDir, "embedcni", "locks"))
	if call := runner.Inside(ctx, locks.Path()); call != nil {
		return fmt.Errorf("%w: %q would wait for itself", cni.ErrInsidePlugin, call.Plugin)
	}
	held, err := locks.LockAll(ctx, []lock.Key{{Name: record.HoldsLock}})
	if err != nil {
		return err
	}
	defer func() { err = joined.Errors(err, held.Release()) }()
	return do(record.HoldsIn(stateDir))
}

// Holds returns the holds of every owner, in the order of time. With an error some
// holds cannot be read. Such a hold holds the container or network that it was made for,
// until End or the end of the container.
func Holds(rt *cni.Runtime) ([]Hold, error) {
	found, err := record.HoldsIn(rt.GetConfig().StateDir).List()
	var all []Hold
	for _, h := range found {
		if h.Err() != nil {
			err = joined.Errors(err, h.Err())
			continue
		}
		one := Hold{string(h.Container), h.Network, h.Reason, h.Owner, h.Since}
		if h.Container != "" {
			if since, serr := (Hold{ContainerID: one.ContainerID}).attached(rt); errors.Is(serr, cni.ErrNotAttached) || serr == nil && !since.Equal(h.Attached) {
				continue // of an earlier container of that ID
			}
		}
		all = append(all, one)
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

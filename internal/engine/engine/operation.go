package engine

import (
	"context"
	"log/slog"
	"time"

	"github.com/embedcni/cni/internal/engine/container"
	"github.com/embedcni/cni/internal/engine/leftovers"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/outcome"
)

// operation is one call for a container in progress.
type operation struct {
	eng         *Engine
	c           *container.Container
	attachments attachments // of this call
	removal     removal
	patience    *contract.Patience // of a repair
}

// removal is the state of removing attachments.
type removal struct {
	leaving map[string]bool // interfaces that are being torn down
	// releases are on their way to the disk, where they must be before the record is deleted.
	releases leftovers.Releases
	cached   *attachments // the container's, in libcni's cache; nil if not read
}

// begin validates everything, and finds out where the plugins will run. It must
// be called on the caller's goroutine, whose thread decides that.
func (eng *Engine) begin(c *Call, verb string) (*operation, error) {
	if c.Err != nil {
		return nil, c.Err
	}
	host, err := eng.openHost()
	if err != nil {
		return nil, err
	}
	op := &operation{eng: eng, c: eng.Store.New(c.ID, host)}
	if c.Makes && verb == "ADD" {
		err = op.c.MakeNetNS(c.Path)
	} else {
		err = op.c.OpenPath(c.Path, verb)
	}
	if err != nil {
		return nil, Join(err, host.Close())
	}
	op.attachments = op.take(c.Planned)
	for _, a := range op.attachments {
		a.plan.NetNS = op.c.Place.Path
	}
	return op, nil
}

// named returns an operation of a container that is not locked.
func (eng *Engine) named(id record.ID) (*operation, error) {
	if err := ValidateID(id); err != nil {
		return nil, err
	}
	host, err := eng.openHost()
	if err != nil {
		return nil, err
	}
	return &operation{eng: eng, c: eng.Store.New(id, host)}, nil
}

// beginTeardown is begin for a call that learns its work from the record, and so
// must lock the container before it can plan.
func (eng *Engine) beginTeardown(ctx context.Context, id record.ID, how container.Access) (*operation, error) {
	op, err := eng.named(id)
	if err != nil {
		return nil, err
	}
	return op, op.lockToRemove(ctx, how)
}

// lockToRemove locks the container for a removal. With an error the operation has ended.
func (op *operation) lockToRemove(ctx context.Context, how container.Access) error {
	err := op.eng.RefuseInside(ctx)
	if err == nil {
		err = op.c.Guard.LockForTeardown(ctx, how)
	}
	if err != nil {
		return Join(err, op.c.Place.Host.Close())
	}
	return nil
}

// lock waits until no other call for the container is in progress. It refuses a
// call that would wait for itself.
func (op *operation) lock(ctx context.Context, how container.Access) error {
	if err := op.eng.RefuseInside(ctx); err != nil {
		return err
	}
	return op.c.Guard.Lock(ctx, how)
}

// outOfReach returns why a container cannot be compared with the kernel; the state is
// stateCompared if it can. The recorded namespaces are open.
func (op *operation) outOfReach() (outcome.HealthState, error) {
	gone, why := op.c.Place.OutOfReach()
	switch {
	case why == nil:
		return stateCompared, nil
	case gone:
		return outcome.StateGone, why
	}
	return outcome.StateUnknown, why
}

// lockedGrace is the time for which a container may be locked and still be
// recovered with the others. Calls that nothing holds up finish within it.
const lockedGrace = 250 * time.Millisecond

// atOnce is the number of containers that are recovered, repaired or asked for CHECK at the
// same time. They mostly wait: for executables, and for the kernel.
const atOnce = 16

// end releases everything that the operation holds.
func (op *operation) end() {
	op.endRemoval()
	op.c.Unlock()
	op.c.Close()
}

// endRemoval discards the state of a removal: another one or an ADD may follow.
func (op *operation) endRemoval() {
	_ = op.removal.releases.Wait() // those who needed it have waited, and logged the error
	op.removal = removal{}
}

// log returns a logger for lines about the container.
func (op *operation) log() *slog.Logger {
	return op.eng.opts.Logger.With("container", op.c.Recorded.ID)
}

// load reads the record. It keeps the legible part of a damaged one, and returns
// the damage. The error is a *RecordError.
func (op *operation) load() (damage, err error) {
	damage, err = op.c.Recorded.Load()
	return damage, AsRecordError(op.eng.Store.Records, op.c.Recorded.ID, record.Name(op.c.Recorded.ID), err)
}

// loadWhole is load for a call that can do nothing with a damaged record.
func (op *operation) loadWhole() error {
	damage, err := op.load()
	if err == nil && damage != nil {
		err = mendable(damage)
	}
	return err
}

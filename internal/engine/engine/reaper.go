package engine

import (
	"context"
	"errors"
	"slices"

	"github.com/embedcni/cni/internal/engine/container"
	"github.com/embedcni/cni/internal/engine/leftovers"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/netns"
)

// reaper removes abandoned containers.
type reaper struct{ eng *Engine }

// request requests a scan of all records for abandoned containers, in the background.
// setup reports that Setup requests it.
func (r reaper) request(host *container.Host, setup bool) {
	if !r.eng.opts.WithoutReaping {
		r.eng.abandoned.Request(r.runtime(), host, setup)
	}
}

func (r reaper) runtime() leftovers.Runtime {
	return leftovers.Runtime{Owner: r.eng.opts.Owner, Boot: r.eng.Store.Boot, Records: r.eng.Store.Records, Logger: r.eng.opts.Logger, Containers: r}
}

// Keeps implements [leftovers.Containers].
func (r reaper) Keeps(id record.ID) bool { return r.eng.Store.Pins.Keeps(id) }

// Tend finishes a removal that Setup or Remove had begun, removes the container if
// its namespace has ended, or else lets go of the namespace.
func (r reaper) Tend(file string, host *container.Host) (step leftovers.Step, err error) {
	rec, err := r.eng.Store.Records.LoadFile(file)
	if err != nil || rec == nil {
		return step, host.Close() // removed since, or damaged, which Recover reports
	}
	op := &operation{eng: r.eng, c: r.eng.Store.New(rec.ContainerID, host)}
	if locked, err := op.c.Guard.TryLock(); !locked { // no look waits for a lock
		return step, Join(err, host.Close())
	}
	defer op.end()
	return r.tend(op, host.ID())
}

// tend is Tend for a container that is locked.
func (r reaper) tend(op *operation, host netns.ID) (step leftovers.Step, err error) {
	if err := op.recallOwn(); err != nil {
		if isSkipped(err) {
			r.eng.opts.Logger.Debug("look for abandoned containers", "error", err)
			return step, nil
		}
		return step, err
	}
	if op.c.Recorded.Record == nil || op.c.Recorded.Damaged {
		return step, nil
	}
	if !leftovers.IsAbandoned(op.c.Recorded.Record, op.eng.opts.Owner, op.eng.Store.Boot) {
		return step, nil
	}
	if going := op.unfinished(); len(going) > 0 {
		return step, finishAbandoned(op, going)
	}
	if op.c.Recorded.Record.LetGo != nil && op.c.Place.Gone() {
		return step, finishAbandoned(op, op.attachments)
	}
	var all []*leftovers.Attachment
	for _, a := range op.attachments {
		all = append(all, a.described())
	}
	step.Ends, err = leftovers.LetGo(op.c, all, op.eng.opts.Logger)
	step.Again = err == nil && op.c.Place.Host.ID() == host
	return step, err
}

// end removes the abandoned container of a record now. It returns false if the container
// stays as it is on record.
func (r reaper) end(ctx context.Context, of *record.Record, host *container.Host) (bool, error) {
	return leftovers.End(ctx, host, func(ctx context.Context, host *container.Host) (step leftovers.Step, err error) {
		at := host.ID()
		op := &operation{eng: r.eng, c: r.eng.Store.New(of.ContainerID, host)}
		if err := op.lockToRemove(ctx, container.Access{}); err != nil {
			return step, err
		}
		defer op.end()
		if step, err = r.tend(op, at); err != nil || step.Again {
			return step, err
		}
		now, err := r.eng.Store.Records.Load(of.ContainerID) // it may have been attached again
		step.Ended = err == nil && (now == nil || now.Generation != of.Generation || !now.Since.Equal(of.Since))
		return step, err
	})
}

// finishAbandoned removes attachments of an abandoned container. It returns nil
// if it is too early to repeat a failed removal.
func finishAbandoned(op *operation, going attachments) error {
	id, path := op.c.Recorded.ID, op.c.Recorded.Record.NetNS.Path
	err := op.finish(context.Background(), going)
	if errors.Is(err, errNotYet) {
		return nil
	}
	if err == nil {
		op.eng.opts.Logger.Info("removed an abandoned container", "container", id, "path", path)
	}
	return err
}

// mostHolders limits how often one Setup is tried again after it has removed containers
// that had its ports: of several that have one port, it learns of one at a time.
const mostHolders = 8

// withoutHolders repeats an attempt to attach a container after containers that are gone and
// have its ports were removed.
func (r reaper) withoutHolders(ctx context.Context, attempt func() (*SetupResult, error)) (result *SetupResult, err error) {
	for range mostHolders {
		if result, err = attempt(); err == nil || !r.endHolders(ctx, err) {
			break
		}
	}
	return result, err
}

// endHolders removes the containers that have the ports which a Setup was refused, if all
// of them are abandoned; see WithoutReaping. The caller holds no lock: a container is
// locked only while this one is not. It returns false if one of them stays.
func (r reaper) endHolders(ctx context.Context, err error) bool {
	var taken *takenPorts
	if r.eng.opts.WithoutReaping || !errors.As(err, &taken) ||
		slices.ContainsFunc(taken.holders, func(rec *record.Record) bool { return !leftovers.IsAbandoned(rec, r.eng.opts.Owner, r.eng.Store.Boot) }) {
		return false
	}
	return !slices.ContainsFunc(taken.holders, func(rec *record.Record) bool { return !r.endDead(ctx, rec) })
}

// endDead removes a dead container that has ports which another wants. It returns false if
// the container stays.
func (r reaper) endDead(ctx context.Context, rec *record.Record) (ended bool) {
	host, err := r.eng.openHost()
	if err == nil {
		ended, err = r.end(ctx, rec, host)
		err = Join(err, host.Close())
	}
	if err != nil {
		r.eng.opts.Logger.Warn("remove a container that is gone and has ports that another wants", "container", rec.ContainerID, "error", err)
	}
	return ended
}

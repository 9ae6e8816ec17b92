package cni

import (
	"context"
	"errors"

	"github.com/embedcni/cni/internal/abandoned"
	"github.com/embedcni/cni/internal/footprint"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/record"
)

// reap requests a scan of all records for abandoned containers, in the background.
// setup reports that Setup requests it.
func (s *snapshot) reap(host *hostns.NetNS, setup bool) {
	if !s.withoutReaping {
		s.abandoned.Request(s.forAbandoned(), host, setup)
	}
}

func (s *snapshot) forAbandoned() abandoned.Runtime {
	return abandoned.Runtime{Owner: s.owner, Boot: s.Boot, Records: s.Records, Logger: s.logger, Containers: reaper{s}}
}

// reaper removes abandoned containers.
type reaper struct{ *snapshot }

// Keeps implements [abandoned.Containers].
func (r reaper) Keeps(id record.ID) bool { return r.Pins.Keeps(id) }

// Tend finishes a removal that Setup or Remove had begun, removes the container if
// its namespace has ended, or else lets go of the namespace.
func (r reaper) Tend(file string, host *hostns.NetNS) (step abandoned.Step, err error) {
	rec, err := r.Records.LoadFile(file)
	if err != nil || rec == nil {
		return step, nil // removed since, or damaged, which Recover reports
	}
	op, err := r.tryBegin(rec.ContainerID, host)
	if op == nil {
		return step, err
	}
	defer op.end()
	if err := op.recallOwn(); err != nil {
		if isSkipped(err) {
			r.logger.Debug("look for abandoned containers", "error", err)
			return step, nil
		}
		return step, err
	}
	if op.Record == nil || op.Damaged || !abandoned.Is(op.Record, op.owner, op.Boot) {
		return step, nil
	}
	if going := op.unfinished(); len(going) > 0 {
		return step, op.finishAbandoned(going)
	}
	if op.Record.LetGo != nil && op.Gone() {
		return step, op.finishAbandoned(op.attachments)
	}
	var all []*footprint.Attachment
	for _, a := range op.attachments {
		all = append(all, a.described())
	}
	step.Ends, err = abandoned.LetGo(op.Container, all, op.logger)
	step.Again = err == nil && op.Host.ID() == host.ID()
	return step, err
}

// tryBegin locks a container as for Remove. It returns nil if it would have to wait
// for the lock.
func (r reaper) tryBegin(id record.ID, from *hostns.NetNS) (*operation, error) {
	host, err := from.Dup()
	if err != nil {
		return nil, err
	}
	op := &operation{snapshot: r.snapshot, Container: r.New(id, host)}
	if locked, err := op.TryLock(); !locked {
		return nil, join(err, host.Close())
	}
	return op, nil
}

// finishAbandoned removes attachments of an abandoned container. It returns nil
// if it is too early to repeat a failed removal.
func (op *operation) finishAbandoned(going []*attachment) error {
	id, path := op.ID, op.Record.NetNS.Path
	err := op.finish(context.Background(), going)
	if errors.Is(err, errNotYet) {
		return nil
	}
	if err == nil {
		op.logger.Info("removed an abandoned container", "container", id, "path", path)
	}
	return err
}

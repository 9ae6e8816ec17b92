package cni

import (
	"context"
	"errors"

	"github.com/embedcni/cni/internal/record"
)

// tendOne does the next step for the container of a record if it is abandoned: it
// finishes a removal that Setup or Remove had begun, removes the container if its
// namespace has ended, or else lets go of the namespace. again reports whether to
// call it once more when the interfaces ends, in the pass's host namespace, have
// vanished.
func (p *reaping) tendOne(file string) (ends []int, again bool, err error) {
	rec, err := p.records.LoadFile(file)
	if err != nil || rec == nil {
		return nil, false, nil // removed since, or damaged, which Recover reports
	}
	op, err := p.take(rec.ContainerID)
	if op == nil {
		return nil, false, err
	}
	defer op.end()
	if err := op.recallOwn(); err != nil {
		return nil, false, p.unlessSkipped(err)
	}
	if op.rec == nil || op.damaged || !op.isAbandonedNow() {
		return nil, false, nil
	}
	if going := op.unfinished(); len(going) > 0 {
		return nil, false, op.finishAbandoned(going)
	}
	if op.rec.LetGo != nil && op.gone() {
		return nil, false, op.finishAbandoned(op.attachments)
	}
	ends, err = op.letGo()
	if none := (*noEndError)(nil); errors.As(err, &none) {
		if p.reaper.say(file, rec.Generation) {
			p.logger.Warn("a container is abandoned, and stays as it is",
				"container", op.id, "path", op.rec.NetNS.Path, "reason", none)
		}
		return nil, false, nil
	}
	return ends, err == nil && op.host.String() == p.host.String(), err
}

// take locks a container as for Remove. It returns nil if it would have to wait for
// the lock.
func (p *reaping) take(id record.ID) (*operation, error) {
	host, err := p.host.Dup()
	if err != nil {
		return nil, err
	}
	op := &operation{snapshot: p.snapshot, verb: "DEL", id: id, host: host}
	op.held, err = op.locks.TryLockAll(op.keys())
	if op.held == nil {
		return nil, join(err, host.Close())
	}
	return op, nil
}

// unlessSkipped returns nil if err means that the container cannot be judged from
// here, and else err.
func (p *reaping) unlessSkipped(err error) error {
	if isSkipped(err) {
		p.logger.Debug("look for abandoned containers", "error", err)
		return nil
	}
	return err
}

func (op *operation) isAbandonedNow() (is bool) {
	here(func(view string) { is = op.isAbandoned(op.rec, view) })
	return is
}

// letGo stops keeping the namespace alive. It returns the interfaces on the host that
// will vanish with the namespace and still exist. It writes the record first:
// otherwise a namespace that another process keeps would be taken for one that has
// ended.
func (op *operation) letGo() (left []int, err error) {
	if op.rec.LetGo == nil {
		ends, err := op.hostEnds()
		if err != nil {
			return nil, err
		}
		note := &record.LetGo{Ends: ends}
		if err := op.records.Append(op.rec, record.Entry{LetGo: note}); err != nil {
			return nil, err
		}
		op.rec.LetGo = note
		op.logger.Info("stopped keeping the network namespace of an abandoned container",
			"container", op.id, "path", op.rec.NetNS.Path)
	}
	if err := op.unpin(); err != nil {
		return nil, err
	}
	return op.host.Lasting(op.rec.LetGo.Ends)
}

// finishAbandoned removes attachments of an abandoned container. It returns nil if it
// is too early to try a removal again that has failed.
func (op *operation) finishAbandoned(going []*attachment) error {
	id, path := op.id, op.rec.NetNS.Path
	err := op.finish(context.Background(), going)
	if errors.Is(err, errNotYet) {
		return nil
	}
	if err == nil {
		op.logger.Info("removed an abandoned container", "container", id, "path", path)
	}
	return err
}

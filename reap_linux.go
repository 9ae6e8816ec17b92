package cni

import (
	"context"
	"errors"

	"github.com/embedcni/cni/internal/record"
)

// tendOne does what is to be done about the container of a record: it lets go of
// its namespace, or removes it if that has ended since, or what a Setup or Remove
// had left unfinished. It reports whether there will be more to do when the
// interfaces that it returns, of the pass's host, have vanished.
func (p *reaping) tendOne(file string) (ends []int, again bool, err error) {
	rec, err := p.records.LoadFile(file)
	if err != nil || rec == nil {
		return nil, false, nil // removed since, or Recover says what is wrong with it
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

// take locks a container as for Remove, unless that needs waiting: nil.
func (p *reaping) take(id string) (*operation, error) {
	host, err := p.host.dup()
	if err != nil {
		return nil, err
	}
	op := &operation{snapshot: p.snapshot, verb: "DEL", id: id, host: host}
	op.held, err = op.locks.TryLockAll(op.keys())
	if op.held == nil {
		return nil, join(err, host.close())
	}
	return op, nil
}

// unlessSkipped is nil if the error means that nothing can be said of the
// container from here.
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

// letGo keeps the namespace alive no longer, and returns those interfaces on the
// host that vanish with it and have not yet. The record comes first: without it a
// namespace that somebody else keeps would be taken for one that has ended.
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
		op.logger.Info("the network namespace of an abandoned container is not kept any more",
			"container", op.id, "path", op.rec.NetNS.Path)
	}
	if err := op.unpin(); err != nil {
		return nil, err
	}
	return op.host.lasting(op.rec.LetGo.Ends)
}

// finishAbandoned removes attachments of an abandoned container, unless their
// removal has failed a moment ago.
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

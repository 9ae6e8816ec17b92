package container

import (
	"errors"
	"fmt"
	"strings"

	"github.com/embedcni/cni/internal/lock"
	"github.com/embedcni/cni/internal/proc"
	"github.com/embedcni/cni/internal/record"
)

// endOrphans kills the processes that keep a container locked although the
// runtime that locked it is dead, and returns their numbers. It returns ErrBusy
// if the lock has a holder that is not known to be such a process.
//
// The mark of a live runtime identifies it (see package lock). A runtime of an
// earlier version is identified by the record, or else because it has the lock
// by a descriptor that it opened itself. rec is nil if nothing is on record: a
// DEL of an attachment of go-cni writes no record.
func (l *Locks) endOrphans(id record.ID, offset int64, rec *record.Record) (ended []int, err error) {
	state, err := l.State(offset)
	if err != nil || state == lock.Free {
		return nil, err
	}
	alive := state == lock.Kept
	if !alive && rec != nil && (rec.Runtime != "" || rec.Life != "") {
		if alive, err = l.process.RuntimeAlive(rec); err != nil {
			return nil, err
		}
	}
	holders, err := proc.Holders(l.Path(), offset)
	defer proc.CloseHolders(holders)
	var opened []string
	for _, h := range holders {
		if h.Opened {
			opened = append(opened, proc.Describe(h.PID))
		}
	}
	switch {
	case alive && err != nil:
		return nil, fmt.Errorf("%w in a process that could not be looked for: %w", ErrBusy, err)
	case err != nil:
		return nil, err
	case len(opened) > 0:
		return nil, fmt.Errorf("%w in %s", ErrBusy, strings.Join(opened, ", "))
	case alive || len(holders) == 0:
		return nil, fmt.Errorf("%w in a process that cannot be seen from here", ErrBusy)
	}
	// They may have ended during the search, and another call begun.
	if state, err = l.State(offset); err != nil || state != lock.Inherited {
		return nil, err
	}
	return l.end(id, holders)
}

func (l *Locks) end(id record.ID, holders []*proc.Holder) (ended []int, err error) {
	var errs []error
	for _, h := range holders {
		killed, err := h.Kill()
		errs = append(errs, err)
		if killed {
			ended = append(ended, h.PID)
		}
	}
	err = errors.Join(errs...)
	if len(ended) > 0 || err != nil {
		l.logger.Warn("killed plugins of a dead runtime", "container", id, "processes", ended, "error", err)
	}
	return ended, err
}

// endOrphansAtBarrier kills the plugins that a dead runtime has left running and
// that have the barrier. They have the lock of their container too, on the same
// description.
func (l *Locks) endOrphansAtBarrier() error {
	holders, err := proc.Holders(l.Path(), lock.Byte(Barrier))
	if err != nil {
		return err
	}
	defer proc.CloseHolders(holders)
	found, err := l.records.List()
	if err != nil {
		return err
	}
	records := map[int64]*record.Record{}
	for _, f := range found {
		records[lock.Byte(key(f.Record.ContainerID))] = f.Record
	}
	done := map[int64]bool{}
	var errs []error
	for _, h := range holders {
		for _, offset := range h.Keys() {
			if done[offset] {
				continue
			}
			done[offset] = true
			rec, id := records[offset], record.ID("")
			if rec != nil {
				id = rec.ContainerID
			}
			if _, err := l.endOrphans(id, offset, rec); !errors.Is(err, ErrBusy) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

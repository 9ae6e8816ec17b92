package sweep

import (
	"context"
	"errors"
	"fmt"

	"github.com/embedcni/cni/internal/builtin/tuning"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/netns"
)

// tuned finds the backups of the plugin tuning, which has not put back what the
// interface had.
func tuned(_ context.Context, t Target) ([]Item, error) {
	var items []Item
	for _, file := range t.Backups {
		if tuning.Pending(file) {
			items = append(items, backup{t, file})
		}
	}
	return items, nil
}

// backup is what tuning has kept of an interface that it has changed.
type backup struct {
	t    Target
	file string
}

func (b backup) String() string {
	return fmt.Sprintf("what interface %s had before tuning, in %s", b.t.IfName, b.file)
}

// Remove puts it back where the interface is by now, and deletes the file. Where
// the interface is gone there is nothing to put back.
func (b backup) Remove() error {
	if !b.t.Dies {
		done, err := b.t.undo(b.file)
		if err != nil && !b.t.GiveUp {
			return fmt.Errorf("put back %s: %w", b, err)
		}
		if done && err == nil {
			return nil
		}
	}
	return tuning.Discard(b.file)
}

// undo puts back what the interface had, if there is the interface: on the host,
// or in the container if it never left. One that is known to be somewhere else
// is an error.
func (t *Target) undo(file string) (done bool, err error) {
	d := t.Device
	switch {
	case d == nil && t.HostName == "":
		return undoAt(t.Container, file, func(l links.Link) bool { return l.Name == t.IfName })
	case d == nil: // of a record without a note
		done, err = undoAt(t.Container, file, func(l links.Link) bool { return l.Alias == t.HostName })
	default:
		done, err = undoAt(t.Container, file, d.isInside)
	}
	if done || err != nil {
		return done, err
	}
	done, err = undoAt(t.Host, file, func(l links.Link) bool {
		if d != nil && d.traceable() {
			return d.isBack(l)
		}
		return l.Name == t.HostName && (d == nil || kindOf(l) == d.Kind)
	})
	if !done && err == nil && d != nil {
		if back, serr := Settled(*t); !back {
			err = errors.Join(errors.New("it is not back"), serr)
		}
	}
	return done, err
}

// undoAt puts it back to the interface in a namespace that is the one.
func undoAt(ns *netns.Handle, file string, is func(links.Link) bool) (done bool, err error) {
	if ns == nil {
		return false, nil
	}
	conn, err := links.Dial(ns)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	all, err := conn.Links()
	if l := find(all, is); l != nil {
		return true, tuning.Undo(conn, *l, file)
	}
	return false, err
}

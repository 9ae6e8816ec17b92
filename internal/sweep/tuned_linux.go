package sweep

import (
	"context"
	"errors"
	"fmt"

	"github.com/embedcni/cni/internal/builtin/tuning"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/netns"
)

// tuned finds the backups of settings that the plugin tuning has not restored.
func (s *search) tuned(context.Context) ([]Item, error) {
	var items []Item
	for _, file := range s.Backups {
		if tuning.Pending(file) {
			items = append(items, backup{s.Target, file})
		}
	}
	return items, nil
}

// backup is a file in which tuning keeps the former settings of an interface.
type backup struct {
	t    Target
	file string
}

func (b backup) String() string {
	return fmt.Sprintf("what interface %s had before tuning, in %s", b.t.IfName, b.file)
}

// Remove restores the settings where the interface is by now, and deletes the file. If
// the interface is gone, there is nothing to restore.
func (b backup) Remove(context.Context) error {
	if !b.t.Interface.Dies {
		done, err := b.t.undo(b.file)
		if err != nil && !b.t.How.GiveUp {
			return fmt.Errorf("put back %s: %w", b, err)
		}
		if done && err == nil {
			return nil
		}
	}
	return tuning.Discard(b.file)
}

// undo restores the interface's former settings, if the interface exists: on the host,
// or in the container if it never left. If it is known to be somewhere else, that is
// an error.
func (t *Target) undo(file string) (done bool, err error) {
	d := t.identity()
	switch {
	case d.Device == nil && t.Interface.HostName == "":
		return undoAt(t.Container, file, func(l links.Link) bool { return l.Name == t.IfName })
	case d.Device == nil: // of a record without a note
		done, err = undoAt(t.Container, file, func(l links.Link) bool { return l.Alias == t.Interface.HostName })
	default:
		done, err = undoAt(t.Container, file, d.isInside)
	}
	if done || err != nil {
		return done, err
	}
	done, err = undoAt(t.Host, file, func(l links.Link) bool {
		if d.Device != nil && d.Traceable() {
			return d.isBack(l)
		}
		return l.Name == t.Interface.HostName && (d.Device == nil || kindOf(l) == d.Kind)
	})
	if !done && err == nil && d.Device != nil {
		if back, serr := Settled(*t); !back {
			err = errors.Join(errors.New("it is not back"), serr)
		}
	}
	return done, err
}

// undoAt restores the settings of the interface in a namespace for which is returns
// true.
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

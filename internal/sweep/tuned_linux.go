package sweep

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"

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
		return undoAt(t.Container, file, func(l netlink.Link) bool { return l.Attrs().Name == t.IfName })
	case d == nil: // of a record without a note
		done, err = undoAt(t.Container, file, func(l netlink.Link) bool { return l.Attrs().Alias == t.HostName })
	default:
		done, err = undoAt(t.Container, file, func(l netlink.Link) bool { return d.in([]netlink.Link{l}) != nil })
	}
	if done || err != nil {
		return done, err
	}
	done, err = undoAt(t.Host, file, func(l netlink.Link) bool {
		if d != nil && d.traceable() {
			return d.isBack(l)
		}
		return l.Attrs().Name == t.HostName && (d == nil || l.Type() == d.Kind)
	})
	if !done && err == nil && d != nil {
		if back, serr := Settled(*t); !back {
			err = errors.Join(errors.New("it is not back"), serr)
		}
	}
	return done, err
}

// undoAt puts it back to the interface in a namespace that is the one.
func undoAt(ns *netns.Handle, file string, is func(netlink.Link) bool) (done bool, err error) {
	if ns == nil {
		return false, nil
	}
	nl, err := links.Open(ns)
	if err != nil {
		return false, err
	}
	defer nl.Close()
	all, err := nl.LinkList()
	if i := slices.IndexFunc(all, is); err == nil && i >= 0 {
		return true, tuning.Undo(nl, all[i], file)
	}
	return false, err
}

package leftovers

import (
	"context"
	"errors"
	"fmt"

	"github.com/embedcni/cni/internal/builtin/tuning"
	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/netns"
)

// tuned finds the backups of settings that the plugin tuning has not restored: files in
// which it keeps what an interface had before.
func (t *Target) tuned(context.Context) (items []Item, err error) {
	for _, file := range t.Footprint.Backups {
		if tuning.Pending(file) {
			text := fmt.Sprintf("what interface %s had before tuning, in %s", t.Footprint.IfName, file)
			items = append(items, Item{text, func(context.Context) error { return t.untune(file, text) }})
		}
	}
	return items, nil
}

// untune restores the settings where the interface is by now, and deletes the file. If
// the interface is gone, there is nothing to restore.
func (t *Target) untune(file, text string) error {
	if !t.Footprint.Interface.Dies {
		done, err := t.undo(file)
		if err != nil && !t.How.GiveUp {
			return fmt.Errorf("put back %s: %w", text, err)
		}
		if done && err == nil {
			return nil
		}
	}
	return tuning.Discard(file)
}

// undo restores the interface's former settings, if the interface exists: on the host,
// or in the container if it never left. If it is known to be somewhere else, that is
// an error.
func (t *Target) undo(file string) (done bool, err error) {
	d := t.Footprint.Interface.Device
	inside := func(l links.Link) bool { return d.isInside(l) }
	switch {
	case d == nil && t.Footprint.Interface.HostName == "":
		return undoAt(t.Container, file, func(l links.Link) bool { return l.Name == t.Footprint.IfName })
	case d == nil: // of a record without a note
		inside = func(l links.Link) bool { return l.Alias == t.Footprint.Interface.HostName }
	}
	if done, err = undoAt(t.Container, file, inside); done || err != nil {
		return done, err
	}
	done, err = undoAt(t.Host, file, func(l links.Link) bool {
		if d != nil && d.Traceable() {
			return d.isBack(l)
		}
		return l.Name == t.Footprint.Interface.HostName && (d == nil || kindOf(l) == d.Kind)
	})
	if !done && err == nil && d != nil {
		if back, serr := t.Settled(); !back {
			err = joined.Errors(errors.New("it is not back"), serr)
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
	err = dialed(ns, func(conn *links.Conn) error {
		all, err := conn.Links()
		l := find(all, is)
		if l == nil {
			return err
		}
		done = true
		return tuning.Undo(conn, *l, file)
	})
	return done, err
}

package watch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/kernel/joined"
)

// attachmentKey names an attachment.
type attachmentKey struct{ container, network, ifName, owner string }

// stateKinds are the events of the states of an attachment.
var stateKinds = map[cni.AttachmentState]Kind{
	cni.Attaching: Attaching, cni.Attached: Attached, cni.Detaching: Detaching, cni.Failed: Failed, cni.Unknown: Damaged,
}

// compareRecords returns the events that lead from one list of attachments to another.
func compareRecords(before, after map[attachmentKey]cni.Attachment) (events []Event) {
	for _, key := range sortedKeys(before) {
		if _, ok := after[key]; !ok {
			events = append(events, eventOf(Removed, before[key]))
		}
	}
	for _, key := range sortedKeys(after) {
		is := after[key]
		was, ok := before[key]
		if ok && was.State == is.State && was.LastError == is.LastError && was.Since.Equal(is.Since) {
			continue
		}
		events = append(events, eventOf(stateKinds[is.State], is))
	}
	return events
}

func sortedKeys(of map[attachmentKey]cni.Attachment) []attachmentKey {
	return slices.SortedFunc(maps.Keys(of), func(a, b attachmentKey) int {
		return strings.Compare(fmt.Sprint(a), fmt.Sprint(b))
	})
}

func eventOf(kind Kind, a cni.Attachment) Event {
	e := Event{Event: kind, ContainerID: a.ContainerID, Network: a.Network, IfName: a.IfName, Owner: a.Owner}
	for _, addr := range a.Addresses {
		e.Addresses = append(e.Addresses, addr.Prefix.String())
	}
	if kind == Failed || kind == Damaged {
		e.Detail = strings.ReplaceAll(a.LastError, "\n", "; ")
	}
	return e
}

// readRecords reads the records of the owner.
func (w *watcher) readRecords() (map[attachmentKey]cni.Attachment, error) {
	all, err := w.rt.Attachments()
	byKey := map[attachmentKey]cni.Attachment{}
	for _, a := range all {
		if w.options.Owner == "" || a.Owner == w.options.Owner {
			byKey[attachmentKey{a.ContainerID, a.Network, a.IfName, a.Owner}] = a
		}
	}
	return byKey, err
}

// begin reads the records for the first time.
func (w *watcher) begin(records *recordWatch) (err error) {
	if w.records, err = w.readRecords(); err != nil {
		return err
	}
	w.report(Event{Event: Watching, Detail: fmt.Sprintf("attachments on record in %s: %d", records.dir, len(w.records))})
	w.wake()
	return nil
}

// followRecords reports attachments as they come and go.
func (w *watcher) followRecords(ctx context.Context, records *recordWatch) error {
	for {
		if err := records.wait(ctx, w.trouble); err != nil {
			return err
		}
		now, err := w.readRecords()
		if err != nil {
			w.trouble(err) // the next change of a file reads again
			continue
		}
		w.mu.Lock()
		events := compareRecords(w.records, now)
		w.records = now
		w.report(events...)
		w.mu.Unlock()
		if len(events) > 0 {
			w.wake()
		}
	}
}

// recordWatch hears of changes in the directory of the records, which need not exist.
type recordWatch struct {
	dir      string
	notifier *fsnotify.Watcher
	watched  string // the directory, or the nearest one above that exists
}

func newRecordWatch(dir string) (*recordWatch, error) {
	notifier, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch the records: %w", err)
	}
	r := &recordWatch{dir: dir, notifier: notifier}
	if err := r.arm(); err != nil {
		return nil, joined.Errors(err, notifier.Close())
	}
	return r, nil
}

func (r *recordWatch) close() error { return r.notifier.Close() }

// arm watches the directory, or while it does not exist the nearest one above that does.
func (r *recordWatch) arm() error {
	for dir := r.dir; ; dir = filepath.Dir(dir) {
		err := r.notifier.Add(dir)
		if errors.Is(err, fs.ErrNotExist) && dir != filepath.Dir(dir) {
			continue
		}
		if err != nil {
			return fmt.Errorf("watch %s: %w", dir, err)
		}
		if r.watched != dir && r.watched != "" {
			// It may be gone, and the watch with it.
			if err := r.notifier.Remove(r.watched); err != nil && !errors.Is(err, fsnotify.ErrNonExistentWatch) {
				return fmt.Errorf("watch %s: %w", dir, err)
			}
		}
		r.watched = dir
		if dir == r.dir {
			return nil
		}
		// A directory below may have been made before the watch began.
		if _, err := os.Lstat(r.below(dir)); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		dir = filepath.Join(r.dir, "x") // begin again
	}
}

// below returns the next directory on the way from dir to the records.
func (r *recordWatch) below(dir string) string {
	rest := strings.TrimPrefix(strings.TrimPrefix(r.dir, dir), "/")
	first, _, _ := strings.Cut(rest, "/")
	return filepath.Join(dir, first)
}

// settle is how long no file changes before the records are read, and late how long they
// change at most.
const (
	settle = 50 * time.Millisecond
	late   = 500 * time.Millisecond
)

// wait returns when files have changed.
func (r *recordWatch) wait(ctx context.Context, trouble func(error)) error {
	var settled, atLast <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-settled:
			return r.arm()
		case <-atLast:
			return r.arm()
		case err := <-r.notifier.Errors:
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				trouble(fmt.Errorf("watch the records: %w", err))
			}
		case <-r.notifier.Events:
		}
		settled = time.After(settle)
		if atLast == nil {
			atLast = time.After(late)
		}
	}
}

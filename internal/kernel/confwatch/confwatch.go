// Package confwatch notices changes of files, configurations above all, whatever happens to
// the directories and symbolic links on the way to them.
package confwatch

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Source is something that is read.
type Source struct {
	Path string
	// Dir marks a directory, with its files and those of its subdirectories. Otherwise
	// Path is a file.
	Dir bool
}

// Watch calls Look whenever a source may have changed.
type Watch struct {
	// Sources returns the sources. It is called before each Look, because Look may change
	// them. They need not exist.
	Sources func() []Source
	// Look reads the sources. Every change after its call causes another call.
	Look func()
	// Failed is called with the reason if not every change is noticed. The Watch keeps
	// trying; when it has succeeded, it calls Failed with nil, and Look.
	Failed func(error)
	// Compare, if it is not nil, asks the Watch to compare the sources with what Look has
	// seen, in case a change was not announced: a mount over a directory, a file system of
	// another machine, other sources.
	Compare <-chan time.Time
	// Settle is how long nothing must change before Look is called. While changes
	// continue, Look is called after ten times as long.
	Settle time.Duration
}

// first and last are the pauses between attempts to watch after a failure.
const first, last = time.Second, time.Minute

// Run calls Look once, and then after each change until ctx ends. It returns an error
// only if it cannot begin. Afterwards nothing that it started or opened is left.
func (w *Watch) Run(ctx context.Context) error {
	r := &run{Watch: w, pause: first, open: fsnotify.NewWatcher, add: (*fsnotify.Watcher).Add}
	return r.until(ctx)
}

// run is a Watch that runs.
type run struct {
	*Watch
	open     func() (*fsnotify.Watcher, error)
	add      func(w *fsnotify.Watcher, dir string) error
	notifier *fsnotify.Watcher
	sight    *sight           // what Look has seen, or more
	retry    <-chan time.Time // after a failure
	pause    time.Duration
}

func (r *run) until(ctx context.Context) (err error) {
	if err := r.arm(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.notifier.Close()) }()
	r.Look()
	for r.wait(ctx); ctx.Err() == nil; r.wait(ctx) {
		if err := r.arm(); err != nil {
			r.Failed(err)
			r.retry = time.After(r.pause)
			r.pause = min(2*r.pause, last)
		} else {
			r.retry, r.pause = nil, first
			r.Failed(nil)
		}
		r.Look()
	}
	return nil
}

// arm watches every directory on the way to the sources with a new notifier, and notes
// how they look. An old notifier may watch directories that have moved. It is closed only
// when the new one is complete.
func (r *run) arm() error {
	fresh, err := r.open()
	if errors.Is(err, syscall.EMFILE) {
		err = fmt.Errorf("%w (fs.inotify.max_user_instances, or this process's limit)", err)
	}
	if err != nil {
		return fmt.Errorf("watch configurations: %w", err)
	}
	seen, err := look(r.Sources(), func(dir string) error { return r.add(fresh, dir) })
	if errors.Is(err, syscall.ENOSPC) {
		err = fmt.Errorf("%w (fs.inotify.max_user_watches)", err)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("watch configurations: %w", err), fresh.Close())
	}
	old := r.notifier
	r.notifier, r.sight = fresh, seen
	if old != nil {
		return old.Close()
	}
	return nil
}

// wait returns when the sources should be read again, or when ctx has ended.
func (r *run) wait(ctx context.Context) {
	var settled, late <-chan time.Time
	touched := func() {
		settled = time.After(r.Settle)
		if late == nil {
			late = time.After(10 * r.Settle)
		}
	}
	for {
		select {
		case e := <-r.notifier.Events:
			if r.sight.includes(e.Name) {
				touched()
			}
		case err := <-r.notifier.Errors:
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				r.Failed(fmt.Errorf("watch configurations: %w", err))
			}
			touched()
		case <-r.Compare:
			now, err := look(r.Sources(), func(string) error { return nil })
			if err == nil && !now.same(r.sight) {
				touched()
			}
		case <-ctx.Done():
			return
		case <-r.retry:
			return
		case <-settled:
			return
		case <-late:
			return
		}
	}
}

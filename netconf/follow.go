package netconf

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/embedcni/cni/internal/kernel/joined"
)

// follower calls look once, and then whenever a source may have changed.
type follower struct {
	// sources returns the files and directories to follow. It is called before each look,
	// because look may change them. They need not exist.
	sources func() (files, dirs []string)
	// look reads the sources. Every change after its call causes another call.
	look func()
	// failed is called with the reason if not every change is noticed. The follower keeps
	// trying; when it has succeeded, it calls look.
	failed func(error)
	// compare asks the follower to compare the sources with what look has seen, in case a
	// change was not announced: a mount over a directory, a file system of another machine,
	// other sources.
	compare <-chan time.Time
	// settle is how long nothing must change before look is called. While changes
	// continue, look is called after ten times as long.
	settle time.Duration
	open   func() (*fsnotify.Watcher, error)
	add    func(w *fsnotify.Watcher, dir string) error

	notifier *fsnotify.Watcher
	sight    *sight           // what look has seen, or more
	retry    <-chan time.Time // after a failure
	pause    time.Duration
}

// first and last are the pauses between attempts to watch after a failure.
const first, last = time.Second, time.Minute

// until follows until ctx ends. It returns an error only if it cannot begin. Afterwards
// nothing that it started or opened is left.
func (r *follower) until(ctx context.Context) (err error) {
	r.pause = first
	if err := r.arm(); err != nil {
		return err
	}
	defer func() { err = joined.Errors(err, r.notifier.Close()) }()
	r.look()
	for r.wait(ctx); ctx.Err() == nil; r.wait(ctx) {
		if err := r.arm(); err != nil {
			r.failed(err)
			r.retry = time.After(r.pause)
			r.pause = min(2*r.pause, last)
		} else {
			r.retry, r.pause = nil, first
		}
		r.look()
	}
	return nil
}

// arm watches every directory on the way to the sources with a new notifier, and notes
// how they look. An old notifier may watch directories that have moved. It is closed only
// when the new one is complete.
func (r *follower) arm() error {
	fresh, err := r.open()
	if errors.Is(err, syscall.EMFILE) {
		err = fmt.Errorf("%w (fs.inotify.max_user_instances, or this process's limit)", err)
	}
	if err != nil {
		return fmt.Errorf("watch configurations: %w", err)
	}
	seen, err := lookAt(r.sources, func(dir string) error { return r.add(fresh, dir) })
	if errors.Is(err, syscall.ENOSPC) {
		err = fmt.Errorf("%w (fs.inotify.max_user_watches)", err)
	}
	if err != nil {
		return joined.Errors(fmt.Errorf("watch configurations: %w", err), fresh.Close())
	}
	old := r.notifier
	r.notifier, r.sight = fresh, seen
	if old != nil {
		return old.Close()
	}
	return nil
}

// wait returns when the sources should be read again, or when ctx has ended.
func (r *follower) wait(ctx context.Context) {
	var settled, late <-chan time.Time
	touched := func() {
		settled = time.After(r.settle)
		if late == nil {
			late = time.After(10 * r.settle)
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
				r.failed(fmt.Errorf("watch configurations: %w", err))
			}
			touched()
		case <-r.compare:
			now, err := lookAt(r.sources, func(string) error { return nil })
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

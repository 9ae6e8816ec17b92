package server

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/fsnotify/fsnotify"

	"github.com/embedcni/cni/internal/kernel/plainfile"
)

// files waits for files to appear. All calls that wait for one file share one watch, which
// ends with the last of them: the instances of inotify are few.
type files struct {
	mu     sync.Mutex
	awaits map[string]*await
}

// await is the watch of one file.
type await struct {
	waiting int
	stop    context.CancelFunc
	ended   chan struct{} // closed when the file exists, or err is set
	err     error         // why it is not noticed when the file appears
}

// wait returns when the file exists, or with an error when draining is closed.
func (f *files) wait(ctx context.Context, path string, draining <-chan struct{}) error {
	if there, err := exists(path); there || err != nil {
		return err
	}
	a := f.join(path)
	defer f.leave(path, a)
	select {
	case <-a.ended:
		return a.err
	case <-draining:
		return errDraining
	case <-ctx.Done():
		return tryLater("%s does not exist yet: %v", path, context.Cause(ctx))
	}
}

// exists reports whether a file exists. An error means that it cannot be known.
func exists(path string) (bool, error) {
	_, err := os.Stat(path)
	switch {
	case err == nil:
		return true, nil
	case absent(err):
		return false, nil
	default:
		return false, tryLater("readiness file: %v", err)
	}
}

// absent reports whether an error means that a path does not exist.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

func (f *files) join(path string) *await {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := f.awaits[path]
	if a == nil {
		ctx, stop := context.WithCancel(context.Background())
		a = &await{stop: stop, ended: make(chan struct{})}
		if f.awaits == nil {
			f.awaits = map[string]*await{}
		}
		f.awaits[path] = a
		go a.run(ctx, path)
	}
	a.waiting++
	return a
}

// leave ends the watch if nobody waits any more.
func (f *files) leave(path string, a *await) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a.waiting--
	if a.waiting == 0 {
		a.stop()
	}
	if f.awaits[path] == a && (a.waiting == 0 || a.done()) {
		delete(f.awaits, path) // the next call begins a watch of its own
	}
}

func (a *await) done() bool {
	select {
	case <-a.ended:
		return true
	default:
		return false
	}
}

// run watches until the file exists or ctx ends.
func (a *await) run(ctx context.Context, path string) {
	defer close(a.ended)
	defer a.stop()
	for there := false; !there && a.err == nil && ctx.Err() == nil; {
		there, a.err = untilChanged(ctx, path)
	}
}

// untilChanged reports whether a file exists. If it does not, untilChanged returns once
// something on the way to it has changed. Directories that were watched may have moved then.
func untilChanged(ctx context.Context, path string) (there bool, err error) {
	fail := func(err error) error {
		return tryLater("readiness file %s: %v (see fs.inotify.max_user_instances and max_user_watches)", path, err)
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return false, fail(err)
	}
	defer w.Close()
	way := make(map[string]bool)
	_, unwatched := plainfile.Walk(path, func(part string) (fs.FileInfo, error) {
		way[part] = true
		// Another user's home, whose entries rarely change, may not be watched.
		if err := w.Add(filepath.Dir(part)); err != nil && !errors.Is(err, fs.ErrPermission) {
			return nil, err
		}
		return os.Lstat(part)
	})
	if there, err := exists(path); there || err != nil {
		return there, err
	}
	if unwatched != nil && !absent(unwatched) {
		return false, fail(unwatched)
	}
	for {
		select {
		case <-ctx.Done():
			return false, nil
		case e := <-w.Events:
			if way[e.Name] {
				return false, nil
			}
		case err := <-w.Errors:
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				return false, fail(err)
			}
			return false, nil
		}
	}
}

package confwatch

import (
	"context"
	"io/fs"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/embedcni/cni/internal/expect"
)

// fixture is a Watch of one directory. Only the test announces changes.
type fixture struct {
	*run
	t      *testing.T
	dir    string
	events chan fsnotify.Event
	errors chan error
	looks  chan struct{}
	failed chan error
	add    func(dir string) error
	opened []*fsnotify.Watcher
}

func start(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{
		t: t, dir: t.TempDir(), events: make(chan fsnotify.Event), errors: make(chan error),
		looks: make(chan struct{}), failed: make(chan error),
		add: func(string) error { return nil },
	}
	ctx, cancel := context.WithCancel(context.Background())
	watch := &Watch{
		Sources: func() []Source { return []Source{{f.dir, true}, {filepath.Join(f.dir, "elsewhere", "file"), false}} },
		Look: func() {
			select {
			case f.looks <- struct{}{}:
			case <-ctx.Done():
			}
		},
		Failed: func(err error) {
			select {
			case f.failed <- err:
			case <-ctx.Done():
			}
		},
		Settle: 5 * time.Millisecond,
	}
	f.run = &run{
		Watch: watch, pause: first, add: func(_ *fsnotify.Watcher, dir string) error { return f.add(dir) },
		open: func() (*fsnotify.Watcher, error) {
			w, err := fsnotify.NewWatcher()
			if err == nil {
				w.Events, w.Errors = f.events, f.errors
				f.opened = append(f.opened, w)
			}
			return w, err
		},
	}
	ended := make(chan error)
	go func() { ended <- f.until(ctx) }()
	t.Cleanup(func() {
		cancel()
		expect.NoError(t, expect.Await(t, "the end", ended))
		for _, w := range f.opened {
			expect.Is(t, w.Add(f.dir), fsnotify.ErrClosed)
		}
	})
	f.look("at first")
	return f
}

func (f *fixture) look(what string) {
	f.t.Helper()
	expect.Await(f.t, "a look "+what, f.looks)
}

func (f *fixture) send(name string) {
	f.t.Helper()
	select {
	case f.events <- fsnotify.Event{Name: name, Op: fsnotify.Write}:
	case <-time.After(expect.Patience):
		f.t.Fatal("nobody listens")
	}
}

// again arms successfully after a look, which clears an earlier failure.
func (f *fixture) again(what string) {
	f.t.Helper()
	expect.Same(f.t, "failure "+what, expect.Await(f.t, what, f.failed), nil)
	f.look(what)
}

func TestOverflow(t *testing.T) {
	f := start(t)
	for range 2 {
		f.errors <- fsnotify.ErrEventOverflow
		f.again("after lost announcements")
	}
}

// TestErrorOfTheNotifier: it is replaced by another.
func TestErrorOfTheNotifier(t *testing.T) {
	f := start(t)
	f.errors <- syscall.EIO
	expect.Is(t, expect.Await(t, "the error", f.failed), syscall.EIO)
	f.again("with another notifier")
	expect.Same(t, "notifiers", len(f.opened), 2)
}

// TestNoWatchesLeft: the sources are read as before, and watched again later.
func TestNoWatchesLeft(t *testing.T) {
	full := make(chan error, 1)
	f := start(t)
	f.add = func(string) error {
		select {
		case err := <-full:
			return err
		default:
			return nil
		}
	}
	full <- syscall.ENOSPC
	f.send(filepath.Join(f.dir, "x"))
	err := expect.Await(t, "the failure", f.failed)
	expect.Is(t, err, syscall.ENOSPC)
	expect.Says(t, "the error", err, "max_user_watches")
	f.look("without a watch")
	f.again("by itself")
}

// TestDirectoriesThatMayNotBeRead matter only where the sources are.
func TestDirectoriesThatMayNotBeRead(t *testing.T) {
	dir := t.TempDir()
	refuse := func(what string) func(string) error {
		return func(dir string) error {
			if dir == what {
				return syscall.EACCES
			}
			return nil
		}
	}
	expect.NoError(t, expect.Err(look([]Source{{dir, true}}, refuse(filepath.Dir(dir)))))
	expect.Is(t, expect.Err(look([]Source{{dir, true}}, refuse(dir))), fs.ErrPermission)
	_, err := look([]Source{{filepath.Join(dir, "file"), false}}, func(string) error { return syscall.EIO })
	expect.Is(t, err, syscall.EIO)
}

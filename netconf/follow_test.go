package netconf

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

// fixture is a follower of one directory. Only the test announces changes.
type fixture struct {
	*follower
	t        *testing.T
	dir      string
	events   chan fsnotify.Event
	errors   chan error
	looks    chan struct{}
	failures chan error
	refuse   func(dir string) error
	opened   []*fsnotify.Watcher
}

func start(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{
		t: t, dir: t.TempDir(), events: make(chan fsnotify.Event), errors: make(chan error),
		looks: make(chan struct{}), failures: make(chan error),
		refuse: func(string) error { return nil },
	}
	ctx, cancel := context.WithCancel(context.Background())
	f.follower = &follower{
		sources: func() (files, dirs []string) {
			return []string{filepath.Join(f.dir, "elsewhere", "file")}, []string{f.dir}
		},
		look: func() {
			select {
			case f.looks <- struct{}{}:
			case <-ctx.Done():
			}
		},
		failed: func(err error) {
			select {
			case f.failures <- err:
			case <-ctx.Done():
			}
		},
		settle: 5 * time.Millisecond, add: func(_ *fsnotify.Watcher, dir string) error { return f.refuse(dir) },
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
	f.looked("at first")
	return f
}

func (f *fixture) looked(what string) {
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

func TestOverflow(t *testing.T) {
	f := start(t)
	for range 2 {
		f.errors <- fsnotify.ErrEventOverflow
		f.looked("after lost announcements")
	}
}

// TestErrorOfTheNotifier: it is replaced by another.
func TestErrorOfTheNotifier(t *testing.T) {
	f := start(t)
	f.errors <- syscall.EIO
	expect.Is(t, expect.Await(t, "the error", f.failures), syscall.EIO)
	f.looked("with another notifier")
	expect.Same(t, "notifiers", len(f.opened), 2)
}

// TestNoWatchesLeft: the sources are read as before, and watched again later.
func TestNoWatchesLeft(t *testing.T) {
	full := make(chan error, 1)
	f := start(t)
	f.refuse = func(string) error {
		select {
		case err := <-full:
			return err
		default:
			return nil
		}
	}
	full <- syscall.ENOSPC
	f.send(filepath.Join(f.dir, "x"))
	err := expect.Await(t, "the failure", f.failures)
	expect.Is(t, err, syscall.ENOSPC)
	expect.Says(t, "the error", err, "max_user_watches")
	f.looked("without a watch")
	f.looked("by itself")
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
	in := func(dir string) func() (files, dirs []string) {
		return func() (files, dirs []string) { return nil, []string{dir} }
	}
	_, err := lookAt(in(dir), refuse(filepath.Dir(dir)))
	expect.NoError(t, err)
	_, err = lookAt(in(dir), refuse(dir))
	expect.Is(t, err, fs.ErrPermission)
	_, err = lookAt(func() (files, dirs []string) { return []string{filepath.Join(dir, "file")}, nil }, func(string) error { return syscall.EIO })
	expect.Is(t, err, syscall.EIO)
}

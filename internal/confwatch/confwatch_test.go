package confwatch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/embedcni/cni/internal/expect"
)

// announcer is a Notifier that announces only what a test says.
type announcer struct {
	add    func(dir string) error
	events chan fsnotify.Event
	errors chan error
	closed bool
}

func (a *announcer) Add(dir string) error          { return a.add(dir) }
func (a *announcer) Events() <-chan fsnotify.Event { return a.events }
func (a *announcer) Errors() <-chan error          { return a.errors }
func (a *announcer) Close() error                  { a.closed = true; return nil }

// fixture is a Watch of one directory.
type fixture struct {
	*Watch
	t      *testing.T
	dir    string
	events chan fsnotify.Event
	errors chan error
	asked  chan time.Time
	looks  chan struct{}
	failed chan error
	add    func(dir string) error
	opened []*announcer
}

func start(t *testing.T, change func(f *fixture)) *fixture {
	t.Helper()
	f := &fixture{
		t: t, dir: t.TempDir(), events: make(chan fsnotify.Event), errors: make(chan error),
		asked: make(chan time.Time), looks: make(chan struct{}), failed: make(chan error),
		add: func(string) error { return nil },
	}
	ctx, cancel := context.WithCancel(context.Background())
	f.Watch = &Watch{
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
		Compare: f.asked, Settle: 5 * time.Millisecond,
		Open: func() (Notifier, error) {
			a := &announcer{add: func(dir string) error { return f.add(dir) }, events: f.events, errors: f.errors}
			f.opened = append(f.opened, a)
			return a, nil
		},
	}
	if change != nil {
		change(f)
	}
	ended := make(chan error)
	go func() { ended <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		expect.NoError(t, expect.Await(t, "the end", ended))
		for n, a := range f.opened {
			if !a.closed {
				t.Errorf("notifier %d of %d is open", n, len(f.opened))
			}
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
	f := start(t, nil)
	for range 2 {
		f.errors <- fsnotify.ErrEventOverflow
		f.again("after lost announcements")
	}
}

// TestErrorOfTheNotifier: it is replaced by another.
func TestErrorOfTheNotifier(t *testing.T) {
	f := start(t, nil)
	f.errors <- syscall.EIO
	expect.Is(t, expect.Await(t, "the error", f.failed), syscall.EIO)
	f.again("with another notifier")
	expect.Same(t, "notifiers", len(f.opened), 2)
}

// TestNoWatchesLeft: the sources are read as before, and watched again later.
func TestNoWatchesLeft(t *testing.T) {
	full := make(chan error, 1)
	f := start(t, nil)
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
	if !strings.Contains(err.Error(), "max_user_watches") {
		t.Errorf("got %v", err)
	}
	f.look("without a watch")
	f.again("by itself")
}

func TestCannotBegin(t *testing.T) {
	w := &Watch{
		Sources: func() []Source { return nil }, Look: func() { t.Error("it looks") },
		Open: func() (Notifier, error) { return nil, syscall.EMFILE },
	}
	err := w.Run(t.Context())
	expect.Is(t, err, syscall.EMFILE)
	if !strings.Contains(err.Error(), "max_user_instances") {
		t.Errorf("got %v", err)
	}
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
	_, err := find([]Source{{dir, true}}, refuse(filepath.Dir(dir)))
	expect.NoError(t, err)
	_, err = find([]Source{{dir, true}}, refuse(dir))
	expect.Is(t, err, fs.ErrPermission)
	_, err = find([]Source{{filepath.Join(dir, "file"), false}}, func(string) error { return syscall.EIO })
	expect.Is(t, err, syscall.EIO)
}

// TestCompare: a change that was not announced is found, and nothing else is read.
func TestCompare(t *testing.T) {
	f := start(t, nil)
	path := filepath.Join(f.dir, "10-net.conflist")
	for n, change := range []func() error{
		func() error { return os.WriteFile(path, []byte("1"), 0o600) },
		func() error { return os.WriteFile(path, []byte("22"), 0o600) },
		func() error { return os.Chmod(path, 0o640) },
		func() error { return os.Chtimes(path, time.Time{}, time.Unix(1, 0)) },
		func() error {
			return errors.Join(os.WriteFile(path+".new", []byte("22"), 0o600), os.Chmod(path+".new", 0o640),
				os.Chtimes(path+".new", time.Time{}, time.Unix(1, 0)), os.Rename(path+".new", path))
		},
		func() error { return os.Remove(path) },
		func() error { return os.Mkdir(filepath.Join(f.dir, "net"), 0o700) },
		func() error { return os.WriteFile(filepath.Join(f.dir, "net", "1.conf"), nil, 0o600) },
		func() error { return os.WriteFile(filepath.Join(f.dir, "net", "1.conf"), []byte("1"), 0o600) },
		func() error { return os.RemoveAll(filepath.Join(f.dir, "net")) },
		func() error { return os.Rename(f.dir, f.dir+".old") },
		func() error { return os.Mkdir(f.dir, 0o700) },
		func() error { return os.Mkdir(filepath.Join(f.dir, "elsewhere"), 0o700) },
		func() error { return os.WriteFile(filepath.Join(f.dir, "elsewhere", "file"), nil, 0o600) },
	} {
		f.asked <- time.Time{} // nothing has changed: a look would come in the way of the next
		f.send("/stranger")    // the comparison is over
		expect.NoError(t, change())
		f.asked <- time.Time{}
		f.again(fmt.Sprint("after change ", n))
	}
	expect.Same(t, "looks", len(f.opened), 15)
}

// TestOneLookForABurst: announcements within the pause are one change, and an endless
// burst is not waited for.
func TestOneLookForABurst(t *testing.T) {
	f := start(t, func(f *fixture) { f.Settle = 300 * time.Millisecond })
	for range 10 {
		f.send(filepath.Join(f.dir, "x"))
	}
	f.again("after ten")
	expect.Same(t, "looks", len(f.opened), 2)
	stop := make(chan struct{})
	sending := make(chan struct{})
	go func() {
		defer close(sending)
		for {
			select {
			case f.events <- fsnotify.Event{Name: filepath.Join(f.dir, "x")}:
			case <-stop:
				return
			}
		}
	}()
	f.again("in the middle")
	close(stop)
	expect.Await(t, "the sender", sending)
}

// TestStrangersDoNotMatter: only entries on the way are looked at.
func TestStrangersDoNotMatter(t *testing.T) {
	f := start(t, nil)
	f.send(filepath.Join(filepath.Dir(f.dir), "stranger"))
	f.send("/stranger")
	f.send(filepath.Join(f.dir, "elsewhere", "stranger"))
	f.send(f.dir)
	f.again("at the directory itself")
	f.send(filepath.Join(f.dir, "elsewhere", "file"))
	f.send(filepath.Join(f.dir, "elsewhere"))
	f.again("at the other source")
	expect.Same(t, "looks", len(f.opened), 3)
}

func TestPlaces(t *testing.T) {
	all := map[string]bool(nil)
	only := func(names ...string) map[string]bool {
		m := map[string]bool{}
		for _, name := range names {
			m[name] = true
		}
		return m
	}
	tests := map[string]struct {
		links map[string]string // path to target; others are directories
		dirs  []string
		files []string
		want  places
	}{
		"nothing": {want: places{"": only("etc")}},
		"a part":  {dirs: []string{"etc"}, want: places{"": only("etc"), "/etc": only("net.d")}},
		"plain": {
			dirs: []string{"etc/net.d/net"}, files: []string{"etc/net.d/1.conf"},
			want: places{"": only("etc"), "/etc": only("net.d"), "/etc/net.d": all, "/etc/net.d/net": all},
		},
		"links": {
			dirs: []string{"x/y", "z"}, links: map[string]string{"etc": "x/y", "x/y/net.d": "../../z/./", "z/1.conf": "../store"},
			files: []string{"store"},
			want:  places{"": only("etc", "x", "z", "store"), "/x": only("y"), "/x/y": only("net.d"), "/z": all},
		},
		"a loop": {
			dirs: []string{"x"}, links: map[string]string{"etc": "x/etc", "x/etc": "../etc"},
			want: places{"": only("etc", "x"), "/x": only("etc")},
		},
		"a volume": {
			dirs: []string{"etc/net.d/..v1"}, files: []string{"etc/net.d/..v1/1.conf"},
			links: map[string]string{"etc/net.d/..data": "..v1", "etc/net.d/1.conf": "..data/1.conf"},
			want:  places{"": only("etc"), "/etc": only("net.d"), "/etc/net.d": all, "/etc/net.d/..v1": only("1.conf")},
		},
		"a link to a directory of plugins": {
			dirs: []string{"etc/net.d", "plugins"}, links: map[string]string{"etc/net.d/net": "../../plugins", "plugins/p.conf": "../p"},
			want: places{"": only("etc", "plugins", "p"), "/etc": only("net.d"), "/etc/net.d": all, "/plugins": all},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			root, err := filepath.EvalSymlinks(t.TempDir())
			expect.NoError(t, err)
			for _, dir := range test.dirs {
				expect.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o700))
			}
			for _, file := range test.files {
				expect.NoError(t, os.WriteFile(filepath.Join(root, file), nil, 0o600))
			}
			for path, target := range test.links {
				expect.NoError(t, os.Symlink(target, filepath.Join(root, path)))
			}
			var watched []string
			got, err := find([]Source{{filepath.Join(root, "etc/net.d"), true}}, func(dir string) error {
				watched = append(watched, dir)
				return nil
			})
			expect.NoError(t, err)
			expect.Same(t, "each is watched once", len(watched), len(got))
			below := places{}
			for dir, entries := range got {
				if rest, ok := strings.CutPrefix(dir, root); ok {
					below[rest] = entries
				} else if len(entries) != 1 {
					t.Errorf("%s: %v", dir, entries)
				}
			}
			expect.Same(t, "places", below, test.want)
		})
	}
}

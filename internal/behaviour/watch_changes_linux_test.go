package behaviour_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netconf"
)

// The configuration directory of these tests is a/b/net.d.
func watchTable() map[string]struct {
	before func(w *watched) // a/b/net.d/10-a.conflist with network "a" if it is nil
	steps  func(w *watched)
} {
	const dir = "a/b/net.d"
	const file = dir + "/10-a.conflist"
	return map[string]struct{ before, steps func(w *watched) }{
		"a file comes": {nil, func(w *watched) {
			w.list(dir+"/20-b.conflist", "b")
			expect.Same(w.t, "added", w.until(netconf.Loaded, "a=eth0 b=eth1").Added, []string{"b"})
		}},
		"a file is renamed into place": {nil, func(w *watched) {
			w.place(file, "b")
			e := w.until(netconf.Loaded, "b=eth0")
			expect.Same(w.t, "changes", [][]string{e.Added, e.Removed, e.Changed}, [][]string{{"b"}, {"a"}, nil})
		}},
		"a file is written over": {nil, func(w *watched) {
			w.write(file, strings.Replace(testhost.ListOf("a"), "1.0.0", "1.1.0", 1))
			expect.Same(w.t, "changed", w.until(netconf.Loaded, "a=eth0").Changed, []string{"a"})
		}},
		"a file is half written": {nil, func(w *watched) {
			full := testhost.ListOf("b")
			w.write(file, full[:len(full)/2])
			expect.Is(w.t, w.until(netconf.Kept, "a=eth0").Err, cni.ErrLoad, cni.ErrInvalidConfig)
			expect.NoError(w.t, w.Status())
			expect.Is(w.t, w.Ready(w.t.Context()), cni.ErrInvalidConfig)
			f := expect.Value(os.OpenFile(w.path(file), os.O_APPEND|os.O_WRONLY, 0))(w.t)
			expect.NoError(w.t, expect.Err(f.WriteString(full[len(full)/2:])), f.Close())
			w.until(netconf.Loaded, "b=eth0")
			expect.Same(w.t, "Ready still has the error", errors.Is(w.Ready(w.t.Context()), cni.ErrLoad), false)
		}},
		"a file breaks, and is as before": {nil, func(w *watched) {
			w.write(file, "{")
			w.until(netconf.Kept, "a=eth0")
			w.list(file, "a")
			w.until(netconf.Unchanged, "a=eth0")
			expect.Same(w.t, "Ready still has the error", errors.Is(w.Ready(w.t.Context()), cni.ErrLoad), false)
		}},
		"another file comes, and is broken": {nil, func(w *watched) {
			w.write(dir+"/20-b.conflist", "{")
			e := w.until(netconf.Loaded, "a=eth0")
			expect.That(w.t, len(e.Skipped) == 1 && e.Skipped[0].Path == w.path(dir, "20-b.conflist"), "got %+v", e)
			w.list(dir+"/20-b.conflist", "b")
			w.until(netconf.Loaded, "a=eth0 b=eth1")
			w.write(dir+"/20-b.conflist", "{") // now it is loaded, and must not vanish
			w.until(netconf.Kept, "a=eth0 b=eth1")
		}},
		"one of two files goes": {func(w *watched) {
			w.list(file, "a")
			w.list(dir+"/20-b.conflist", "b")
		}, func(w *watched) {
			w.remove(file)
			expect.Same(w.t, "removed", w.until(netconf.Loaded, "b=eth0").Removed, []string{"a"})
		}},
		"the last file goes, and comes back": {nil, func(w *watched) {
			w.remove(file)
			e := w.until(netconf.Unloaded, "")
			expect.Same(w.t, "removed", e.Removed, []string{"a"})
			expect.Is(w.t, e.Err, cni.ErrCNINotInitialized)
			expect.Is(w.t, w.Status(), cni.ErrCNINotInitialized)
			w.write(dir+"/README", "no configuration")
			w.until(netconf.Unchanged, "")
			w.write(file, "{")
			expect.Is(w.t, w.until(netconf.Kept, "").Err, cni.ErrInvalidConfig)
			expect.Is(w.t, w.Status(), cni.ErrCNINotInitialized, cni.ErrInvalidConfig)
			w.list(file, "a")
			w.until(netconf.Loaded, "a=eth0")
		}},
		"a file is insecure for a while": {nil, func(w *watched) {
			expect.NoError(w.t, os.Chmod(w.path(file), 0o666))
			expect.Is(w.t, w.until(netconf.Kept, "a=eth0").Err, cni.ErrInsecureFile)
			expect.NoError(w.t, os.Chmod(w.path(file), 0o644))
			w.until(netconf.Unchanged, "a=eth0")
		}},
		"directories are renamed away, and others into their places": {nil, func(w *watched) {
			for n, part := range []string{"a/b/net.d", "a/b", "a"} {
				was := strings.TrimPrefix(file, part)
				network := fmt.Sprint("n", n)
				w.list("fresh"+was, network)
				w.rename(part, "away")
				w.rename("fresh", part)
				w.until(netconf.Loaded, network+"=eth0")
				w.list("away"+was, "wrong") // nobody's any more
				w.place(file, network+"x")
				w.until(netconf.Loaded, network+"x=eth0")
				w.remove("away")
			}
		}},
		"directories are exchanged": {nil, func(w *watched) {
			w.list("other/b/net.d/10-a.conflist", "b")
			for _, network := range []string{"b", "a", "b"} {
				expect.NoError(w.t, unix.Renameat2(unix.AT_FDCWD, w.path("a"), unix.AT_FDCWD, w.path("other"), unix.RENAME_EXCHANGE))
				w.until(netconf.Loaded, network+"=eth0")
			}
		}},
		"the directory is a file for a while": {nil, func(w *watched) {
			w.remove(dir)
			w.until(netconf.Unloaded, "")
			w.write(dir, "x")
			w.until(netconf.Kept, "")
			w.remove(dir)
			w.list(file, "b")
			w.until(netconf.Loaded, "b=eth0")
		}},
		"there is nothing at first": {func(*watched) {}, func(w *watched) {
			expect.Is(w.t, w.until(netconf.Kept, "").Err, cni.ErrCNINotInitialized)
			expect.NoError(w.t, os.Mkdir(w.path("a"), 0o755))
			w.list(file, "a")
			w.until(netconf.Loaded, "a=eth0")
		}},
		"the directory is a symbolic link": {func(w *watched) {
			w.list("real/1/10-a.conflist", "a")
			w.list("real/2/10-a.conflist", "b")
			w.symlink("../../real/1", dir)
		}, func(w *watched) {
			w.relink("../../real/2", dir)
			w.until(netconf.Loaded, "b=eth0")
			w.place("real/2/10-a.conflist", "c")
			w.until(netconf.Loaded, "c=eth0")
			w.remove("real")
			w.until(netconf.Unloaded, "")
			w.list("real/2/10-a.conflist", "d")
			w.until(netconf.Loaded, "d=eth0")
		}},
		"a symbolic link that leads to itself": {nil, func(w *watched) {
			w.remove("a/b")
			w.until(netconf.Unloaded, "")
			w.symlink("b", "a/b")
			w.until(netconf.Kept, "")
			w.remove("a/b")
			w.list(file, "b")
			w.until(netconf.Loaded, "b=eth0")
		}},
		"a volume of Kubernetes": {func(w *watched) {
			w.configMap(dir, "..v1", map[string]string{"10-a.conflist": "a"})
		}, func(w *watched) {
			w.configMap(dir, "..v2", map[string]string{"10-a.conflist": "b"})
			w.until(netconf.Loaded, "b=eth0")
			w.remove(dir + "/..v1")
			w.configMap(dir, "..v3", map[string]string{"10-a.conflist": "c", "20-d.conflist": "d"})
			w.until(netconf.Loaded, "c=eth0 d=eth1")
		}},
		"a file is a symbolic link": {func(w *watched) {
			w.list("store/x/conf", "a")
			w.symlink("../../../store/link", file)
			w.symlink("x/conf", "store/link")
		}, func(w *watched) {
			w.list("store/x/conf", "b") // in place
			w.until(netconf.Loaded, "b=eth0")
			w.place("store/x/conf", "c")
			w.until(netconf.Loaded, "c=eth0")
			w.list("store/y/conf", "d")
			w.relink("y/conf", "store/link")
			w.until(netconf.Loaded, "d=eth0")
			w.remove("store/y")
			w.until(netconf.Kept, "d=eth0") // it may have been meant
			w.list("store/y/conf", "e")
			w.until(netconf.Loaded, "e=eth0")
		}},
		"the plugins' files of a list": {func(w *watched) {
			w.write(file, `{"cniVersion": "1.1.0", "name": "a"}`)
			w.write(dir+"/a/10.conf", `{"type": "x"}`)
		}, func(w *watched) {
			w.write(dir+"/a/20.conf", `{"type": "y"}`)
			w.until(netconf.Loaded, "a=eth0")
			expect.Same(w.t, "plugins", len(w.GetConfig().Networks[0].Config.Plugins), 2)
			w.write(dir+"/a/20.conf", `{"type":`)
			w.until(netconf.Kept, "a=eth0")
			w.remove(dir + "/a")
			w.until(netconf.Kept, "a=eth0")
			w.write(dir+"/a/10.conf", `{"type": "z"}`)
			w.until(netconf.Loaded, "a=eth0")
			w.remove(dir + "/a/10.conf")
			w.symlink("../../../../z.conf", dir+"/a/10.conf")
			w.until(netconf.Kept, "a=eth0")
			w.write("z.conf", `{"type": "zz"}`)
			w.until(netconf.Loaded, "a=eth0")
		}},
	}
}

// TestWatchSeesAFolderThatComesLater: a list whose plugins are in files beside it could not
// be loaded without them.
func TestWatchSeesAFolderThatComesLater(t *testing.T) {
	const list = `{"cniVersion": "1.0.0", "name": "a"}`
	const plugin = `{"type": "p"}`
	for from, opt := range map[string]func(w *watched) cni.Opt{
		"WithConfListFile": func(w *watched) cni.Opt { return cni.WithConfListFile(w.path("conf/a.conflist")) },
		"WithAllConf":      func(*watched) cni.Opt { return cni.WithAllConf },
	} {
		for what, tt := range map[string]struct {
			before, comes func(w *watched)
		}{
			"a directory": {nil, func(w *watched) { w.write("conf/a/10.conf", plugin) }},
			"a file in it": {
				func(w *watched) { expect.NoError(t, os.MkdirAll(w.path("conf/a"), 0o755)) },
				func(w *watched) { w.write("conf/a/10.conf", plugin) },
			},
			"a directory, by renaming": {
				func(w *watched) { w.write("conf.new/a/10.conf", plugin) },
				func(w *watched) { w.rename("conf.new/a", "conf/a") },
			},
			"a symbolic link": {
				func(w *watched) { w.write("elsewhere/a/10.conf", plugin) },
				func(w *watched) { w.symlink("../elsewhere/a", "conf/a") },
			},
			"the target of a symbolic link": {
				func(w *watched) { w.symlink("../elsewhere/deep/a", "conf/a") },
				func(w *watched) { w.write("elsewhere/deep/a/10.conf", plugin) },
			},
			"the target of a file's symbolic link": {
				func(w *watched) { w.symlink("../../elsewhere/10.conf", "conf/a/10.conf") },
				func(w *watched) { w.write("elsewhere/10.conf", plugin) },
			},
		} {
			t.Run(from+", "+what, func(t *testing.T) {
				testhost.LeavesNothingRunning(t)
				w := &watched{t: t, dir: t.TempDir()}
				w.write("conf/a.conflist", list)
				if tt.before != nil {
					tt.before(w)
				}
				r := expect.Value(cni.New(cni.WithPluginConfDir(w.path("conf")), cni.WithStateDir(w.path("state"))))(t)
				fails(t, r.Load(opt(w)))
				w = watch(t, w.dir, r)
				w.until(netconf.Kept, "")
				tt.comes(w)
				w.until(netconf.Loaded, "a=eth0")
				w.write("conf/a/20.conf", `{"type": "q"}`)
				expect.Same(t, "changed", w.until(netconf.Loaded, "a=eth0").Changed, []string{"a"})
			})
		}
	}
}

// TestWatchFollowsTheFolderOfAnotherName: the file, which cannot be loaded yet, names
// another network before its folder comes.
func TestWatchFollowsTheFolderOfAnotherName(t *testing.T) {
	testhost.LeavesNothingRunning(t)
	w := &watched{t: t, dir: t.TempDir()}
	w.write("conf/a.conflist", `{"cniVersion": "1.0.0", "name": "a"}`)
	r := expect.Value(cni.New(cni.WithStateDir(w.path("state"))))(t)
	fails(t, r.Load(cni.WithConfListFile(w.path("conf/a.conflist"))))
	w = watch(t, w.dir, r)
	w.until(netconf.Kept, "")
	w.write("conf/a.conflist", `{"cniVersion": "1.0.0", "name": "b"}`)
	w.until(netconf.Kept, "")
	w.write("conf/b/10.conf", `{"type": "p"}`)
	w.until(netconf.Loaded, "b=eth0")
}

// takeDescriptors leaves this process none, not even those that others close meanwhile:
// its own limit is below all that are open. The limit of inotify instances would be the
// whole machine's.
func takeDescriptors(t *testing.T) (restore func()) {
	t.Helper()
	var was unix.Rlimit
	expect.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	restore = sync.OnceFunc(func() { expect.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was)) })
	const standard = 3 // in, out and error
	expect.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: standard, Max: was.Max}))
	if fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0); !errors.Is(err, unix.EMFILE) {
		restore()
		t.Fatalf("got descriptor %d, %v", fd, err)
	}
	return restore
}

// TestWatchThatCannotBegin returns the reason.
func TestWatchThatCannotBegin(t *testing.T) {
	dir := t.TempDir()
	r := expect.Value(cni.New(cni.WithPluginConfDir(dir), cni.WithStateDir(dir)))(t)
	restore := takeDescriptors(t)
	err := netconf.Watch(t.Context(), r, netconf.WatchOptions{})
	restore()
	expect.Is(t, err, unix.EMFILE)
	fails(t, err, "max_user_instances")
}

// TestWatchWithoutDescriptors keeps the networks, says that it does not notice every
// change, and recovers.
func TestWatchWithoutDescriptors(t *testing.T) {
	w := watchFiles(t, map[string]string{"10-a.conflist": "a", "new": "b"}, cni.WithDefaultConf)
	w.until(netconf.Unchanged, "a=eth0")
	restore := takeDescriptors(t)
	defer restore()
	w.rename("net.d/new", "net.d/10-a.conflist")
	failed, kept := expect.Await(t, "an event", w.events), expect.Await(t, "another", w.events)
	expect.Same(t, "kinds", []netconf.WatchKind{failed.Kind, kept.Kind}, []netconf.WatchKind{netconf.Failed, netconf.Kept})
	expect.Is(t, failed.Err, unix.EMFILE)
	expect.Is(t, kept.Err, unix.EMFILE, cni.ErrRead)
	expect.Same(t, "loaded", loaded(w.Runtime), "a=eth0")
	why := w.Ready(t.Context())
	restore()
	expect.Is(t, why, unix.EMFILE, cni.ErrLoad)
	w.until(netconf.Loaded, "b=eth0") // by itself
	err := w.Ready(t.Context())
	expect.That(t, !errors.Is(err, unix.EMFILE) && !errors.Is(err, cni.ErrLoad), "Ready still has %v", err)
}

// TestWatchBesideEverythingElse: two Watches and other calls run at once; afterwards the
// networks are those of the files.
func TestWatchBesideEverythingElse(t *testing.T) {
	w := watchFiles(t, map[string]string{"10-a.conflist": "a"}, cni.WithDefaultConf)
	other := watch(t, w.dir, w.Runtime)
	ctx, stop := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for _, call := range []func() error{
		func() error { return w.Load(cni.WithDefaultConf) },
		func() error { return w.Load(cni.WithLoNetwork, cni.WithAllConf) },
		w.Status,
		func() error {
			if err := w.Ready(ctx); err != nil && !strings.HasPrefix(err.Error(), "not ready: ") {
				return err
			}
			return nil
		},
		func() error { w.GetConfig(); return nil },
		func() error {
			if _, err := w.Setup(ctx, "c1", "/nowhere"); !errors.Is(err, cni.ErrInvalidNetNS) {
				return err
			}
			return nil
		},
	} {
		group.Go(func() {
			for ctx.Err() == nil {
				if err := call(); err != nil && !errors.Is(err, cni.ErrCNINotInitialized) &&
					!errors.Is(err, cni.ErrInvalidConfig) && !errors.Is(err, cni.ErrRead) {
					t.Error(err)
					return
				}
			}
		})
	}
	for n := range 8 {
		switch n % 4 {
		case 0:
			w.remove("net.d")
		case 1:
			w.write("net.d/10-a.conflist", "{")
		default:
			w.list("net.d/10-a.conflist", fmt.Sprint("n", n))
			w.place("net.d/20-b.conflist", fmt.Sprint("m", n))
		}
		for _, one := range []*watched{w, other} {
			expect.Await(t, "an event", one.events)
			for len(one.events) > 0 {
				<-one.events
			}
		}
	}
	stop()
	group.Wait()
	expect.NoError(t, os.RemoveAll(w.path("net.d")))
	w.place("net.d/10-a.conflist", "last")
	expect.Eventually(t, "the last network", func() bool { return strings.HasSuffix(loaded(w.Runtime), "last=eth0") })
}

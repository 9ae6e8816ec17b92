package behaviour_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netconf"
)

// watched is a Runtime whose Watch runs.
type watched struct {
	*cni.Runtime
	t      testing.TB
	dir    string // everything of the test is in it
	events chan netconf.WatchEvent
	stop   func()
}

// watch runs a Watch until the test ends.
func watch(t testing.TB, dir string, r *cni.Runtime) *watched {
	t.Helper()
	w := &watched{Runtime: r, t: t, dir: dir, events: make(chan netconf.WatchEvent, 10_000)}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- netconf.Watch(ctx, r, netconf.WatchOptions{Settle: 3 * time.Millisecond, Every: 20 * time.Millisecond, Report: func(e netconf.WatchEvent) { w.events <- e }})
	}()
	w.stop = func() {
		cancel()
		select {
		case err := <-ended:
			expect.NoError(t, err)
			ended <- nil
		case <-time.After(expect.Patience):
			t.Error("the Watch does not end with its context")
		}
	}
	t.Cleanup(w.stop)
	return w
}

// watchFiles runs a Watch for a Runtime of the networks that are in these files of net.d.
func watchFiles(t testing.TB, networks map[string]string, opts ...cni.Opt) *watched {
	t.Helper()
	w := &watched{t: t, dir: t.TempDir()}
	for file, network := range networks {
		w.list("net.d/"+file, network)
	}
	base := []cni.Opt{cni.WithPluginConfDir(w.path("net.d")), cni.WithStateDir(w.path("state"))}
	return watch(t, w.dir, expect.Value(cni.New(append(base, opts...)...))(t))
}

// until waits for an event of that kind after which these networks are loaded.
func (w *watched) until(kind netconf.WatchKind, networks string) netconf.WatchEvent {
	w.t.Helper()
	var seen []string
	patience := time.After(expect.Patience)
	for {
		select {
		case e := <-w.events:
			now := loaded(w.Runtime)
			seen = append(seen, fmt.Sprintf("%v, loaded: %s", e, now))
			if e.Kind == kind && now == networks {
				return e
			}
		case <-patience:
			w.t.Fatalf("no event %q with %q loaded, but\n%s", kind, networks, strings.Join(seen, "\n"))
		}
	}
}

func (w *watched) path(elem ...string) string {
	return filepath.Join(append([]string{w.dir}, elem...)...)
}

func (w *watched) write(name, content string) {
	w.t.Helper()
	expect.NoError(w.t, os.MkdirAll(filepath.Dir(w.path(name)), 0o755), os.WriteFile(w.path(name), []byte(content), 0o644))
}

func (w *watched) list(name, network string) {
	w.t.Helper()
	w.write(name, testhost.ListOf(network))
}

// place writes a file beside its place, and renames it into it.
func (w *watched) place(name, network string) {
	w.t.Helper()
	w.list(name+".new", network)
	w.rename(name+".new", name)
}

func (w *watched) rename(from, to string) {
	w.t.Helper()
	expect.NoError(w.t, os.Rename(w.path(from), w.path(to)))
}

func (w *watched) remove(name string) {
	w.t.Helper()
	expect.NoError(w.t, os.RemoveAll(w.path(name)))
}

func (w *watched) symlink(target, name string) {
	w.t.Helper()
	expect.NoError(w.t, os.MkdirAll(filepath.Dir(w.path(name)), 0o755), os.Symlink(target, w.path(name)))
}

// relink replaces a symbolic link, atomically.
func (w *watched) relink(target, name string) {
	w.t.Helper()
	w.symlink(target, name+".new")
	w.rename(name+".new", name)
}

// configMap makes the next version of a volume as Kubernetes does.
func (w *watched) configMap(dir, version string, networks map[string]string) {
	w.t.Helper()
	for file, network := range networks {
		w.list(filepath.Join(dir, version, file), network)
	}
	if _, err := os.Lstat(w.path(dir, "..data")); err != nil {
		w.symlink(version, filepath.Join(dir, "..data"))
	} else {
		expect.NoError(w.t, os.Symlink(version, w.path(dir, "..data_tmp")))
		w.rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data"))
	}
	for file := range networks {
		if _, err := os.Lstat(w.path(dir, file)); err != nil {
			w.symlink(filepath.Join("..data", file), filepath.Join(dir, file))
		}
	}
}

// TestWatchFollowsEachKindOfChange of a file or directory.
func TestWatchFollowsEachKindOfChange(t *testing.T) {
	for name, test := range watchTable() {
		t.Run(name, func(t *testing.T) {
			testhost.LeavesNothingRunning(t)
			w := &watched{t: t, dir: t.TempDir()}
			if test.before == nil {
				w.list("a/b/net.d/10-a.conflist", "a")
			} else {
				test.before(w)
			}
			r := expect.Value(cni.New(cni.WithPluginConfDir(w.path("a/b/net.d")), cni.WithStateDir(w.path("state"))))(t)
			err := r.Load(cni.WithAllConf)
			w = watch(t, w.dir, r)
			if err == nil {
				w.until(netconf.Unchanged, loaded(r))
			}
			test.steps(w)
		})
	}
}

// TestFault_F27_WatchFindsAMissedChange at its interval.
func TestFault_F27_WatchFindsAMissedChange(t *testing.T) {
	w := watchFiles(t, map[string]string{"10-a.conflist": "a"}, cni.WithDefaultConf)
	w.list("other/10-a.conflist", "b")
	dir := w.path("net.d")
	w.until(netconf.Unchanged, "a=eth0")
	expect.NoError(t, unix.Mount(w.path("other"), dir, "", unix.MS_BIND, ""))
	mounted := true
	defer func() {
		if mounted {
			expect.NoError(t, unix.Unmount(dir, unix.MNT_DETACH))
		}
	}()
	w.until(netconf.Loaded, "b=eth0")
	w.place("other/10-a.conflist", "c") // it is watched now
	w.until(netconf.Loaded, "c=eth0")
	expect.NoError(t, unix.Unmount(dir, unix.MNT_DETACH))
	mounted = false
	w.until(netconf.Loaded, "a=eth0")
}

// TestWatchRespectsTheMinimumOfNetworks.
func TestWatchRespectsTheMinimumOfNetworks(t *testing.T) {
	w := watchFiles(t, map[string]string{"10-a.conflist": "a", "20-b.conflist": "b"}, cni.WithAllConf, cni.WithMinNetworkCount(2))
	w.until(netconf.Unchanged, "a=eth0 b=eth1")
	w.remove("net.d/10-a.conflist")
	w.until(netconf.Loaded, "b=eth0")
	expect.Is(t, w.Status(), cni.ErrCNINotInitialized)
	w.list("net.d/10-a.conflist", "a")
	w.until(netconf.Loaded, "a=eth0 b=eth1")
	expect.NoError(t, w.Status())
	expect.NoError(t, w.Load(cni.WithAllConf, cni.WithMinNetworkCount(0)))
	w.remove("net.d")
	w.until(netconf.Unloaded, "")
	expect.Is(t, w.Status(), cni.ErrCNINotInitialized) // zero networks were never asked for
}

// TestWatchFollowsTheLastLoad, one that failed included.
func TestWatchFollowsTheLastLoad(t *testing.T) {
	w := watchFiles(t, map[string]string{"10-a.conflist": "a"}, cni.WithDefaultConf)
	w.until(netconf.Unchanged, "a=eth0")
	expect.Is(t, w.Load(cni.WithPluginConfDir(w.path("other")), cni.WithInterfacePrefix("net"), cni.WithAllConf), cni.ErrCNINotInitialized)
	w.until(netconf.Kept, "a=eth0") // nothing of this Load has ever been there
	w.list("other/10-b.conflist", "b")
	w.until(netconf.Loaded, "b=net0")
	expect.Same(t, "directory", w.GetConfig().PluginConfDir, w.path("other"))
	w.list("file/x.conf", "c")
	expect.NoError(t, w.Load(cni.WithConfListFile(w.path("file/x.conf")), cni.WithConfListBytes([]byte(testhost.ListOf("fixed")))))
	w.until(netconf.Unchanged, "c=net0 fixed=net1")
	w.place("other/10-b.conflist", "nobody's")
	w.place("file/x.conf", "d")
	w.until(netconf.Loaded, "d=net0 fixed=net1")
	w.remove("file")
	w.until(netconf.Unloaded, "")
	w.list("file/x.conf", "e")
	w.until(netconf.Loaded, "e=net0 fixed=net1")
	expect.Is(t, w.Load(cni.WithPortRange(2, 1)), cni.ErrInvalidArgument)
	w.place("file/x.conf", "f") // an option that cannot be applied changes nothing
	w.until(netconf.Loaded, "f=net0 fixed=net1")
	expect.NoError(t, w.Load(cni.WithConfListBytes([]byte(testhost.ListOf("fixed")))))
	w.until(netconf.Unchanged, "fixed=net0") // nothing to follow
}

// TestRemoveAndCheckGoOnWithoutFiles: the containers stay attached.
func TestRemoveAndCheckGoOnWithoutFiles(t *testing.T) {
	s := newStage(t)
	write(s.Host, "net.d/10-a.conflist", string(s.Network("a", "1.0.0", "p")))
	r := s.Runtime(cni.WithDefaultConf)
	testhost.MustSetUp(t, r, "c1", s.Container("c1"))
	s.Container("c2")
	w := watch(t, s.Dir, r)
	w.until(netconf.Unchanged, "a=eth0")
	w.remove("net.d")
	w.until(netconf.Unloaded, "")
	s.TakeCalls()
	expect.Is(t, errOf(r.Setup(t.Context(), "c2", s.Path("netns", "c2"))), cni.ErrCNINotInitialized)
	expect.NoError(t, r.Check(t.Context(), "c1", s.Path("netns", "c1")))
	expect.Is(t, r.Check(t.Context(), "c2", s.Path("netns", "c2")), cni.ErrNotAttached)
	expect.NoError(t, r.Remove(t.Context(), "c1", s.Path("netns", "c1")))
	expect.Same(t, "calls", s.Took(), []string{"CHECK p c1/eth0", "DEL p c1/eth0"})
	w.stop()
}

// TestWatchEndsAndLeavesNothing, also while files change, and one of two.
func TestWatchEndsAndLeavesNothing(t *testing.T) {
	testhost.LeavesNothingRunning(t)
	w := &watched{t: t, dir: t.TempDir()}
	w.list("net.d/10-a.conflist", "a")
	opts := []cni.Opt{cni.WithPluginConfDir(w.path("net.d")), cni.WithStateDir(w.path("state")), cni.WithDefaultConf}
	r := expect.Value(cni.New(opts...))(t)
	for n := range 6 {
		one, other := watch(t, w.dir, r), watch(t, w.dir, r)
		w.place("net.d/10-a.conflist", fmt.Sprint("n", n))
		one.stop()
		w.place("net.d/10-a.conflist", fmt.Sprint("m", n))
		other.until(netconf.Loaded, fmt.Sprintf("m%d=eth0", n))
		w.write("net.d/10-a.conflist", "{")
		other.until(netconf.Kept, fmt.Sprintf("m%d=eth0", n))
		expect.Is(t, r.Ready(t.Context()), cni.ErrInvalidConfig)
		other.stop()
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	expect.NoError(t, netconf.Watch(ended, r, netconf.WatchOptions{}))
	expect.Is(t, netconf.Watch(t.Context(), r, netconf.WatchOptions{Settle: -1}), cni.ErrInvalidArgument)
}

// TestWatchRandomly: whatever happens to the tree, in the end what is there is loaded.
func TestWatchRandomly(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	w := &watched{t: t, dir: t.TempDir()}
	const dir = "a/b/net.d"
	w.list(dir+"/10-a.conflist", "first")
	opts := []cni.Opt{cni.WithPluginConfDir(w.path(dir)), cni.WithStateDir(w.path("state")), cni.WithDefaultConf}
	w = watch(t, w.dir, expect.Value(cni.New(opts...))(t))
	w.until(netconf.Unchanged, "first=eth0")
	parts := []string{"a", "a/b", dir}
	for round := range 15 {
		for range rng.IntN(6) {
			part := parts[rng.IntN(len(parts))]
			away := fmt.Sprint("away", rng.Int())
			switch rng.IntN(6) {
			case 0:
				w.remove(part)
			case 1:
				err := os.Rename(w.path(part), w.path(away))
				expect.Must(t, err == nil || errors.Is(err, fs.ErrNotExist), "%v", err)
			case 2: // a link in its place
				if err := os.Rename(w.path(part), w.path(away)); err == nil {
					expect.NoError(t, os.Symlink(w.path(away), w.path(part)))
				}
			case 3:
				w.write(dir+"/10-a.conflist", "{")
			case 4:
				w.list(dir+"/20-other.conflist", "other")
			case 5:
				w.list(dir+"/10-a.conflist", "a")
			}
		}
		network := fmt.Sprint("r", round)
		w.place(dir+"/10-a.conflist", network)
		w.until(netconf.Loaded, network+"=eth0")
	}
	left := expect.Value(filepath.Glob(w.path("away*")))(t)
	slices.Sort(left)
	t.Logf("%d trees were moved away", len(left))
}

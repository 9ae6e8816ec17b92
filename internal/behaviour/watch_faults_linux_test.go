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
	"github.com/embedcni/cni/netconf"
)

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
	says(t, err, "max_user_instances")
}

// TestWatchWithoutDescriptors keeps the networks, says that it does not notice every
// change, and recovers.
func TestWatchWithoutDescriptors(t *testing.T) {
	w := &watched{t: t, dir: t.TempDir()}
	w.list("net.d/10-a.conflist", "a")
	w.list("net.d/new", "b")
	opts := []cni.Opt{cni.WithPluginConfDir(w.path("net.d")), cni.WithStateDir(w.path("state")), cni.WithDefaultConf}
	w = watch(t, w.dir, expect.Value(cni.New(opts...))(t))
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
	if err := w.Ready(t.Context()); errors.Is(err, unix.EMFILE) || errors.Is(err, cni.ErrLoad) {
		t.Errorf("Ready still has %v", err)
	}
}

// TestWatchBesideEverythingElse: calls meet it in any order, and what is on disk in the
// end is loaded.
func TestWatchBesideEverythingElse(t *testing.T) {
	w := &watched{t: t, dir: t.TempDir()}
	w.list("net.d/10-a.conflist", "a")
	dir := cni.WithPluginConfDir(w.path("net.d"))
	w = watch(t, w.dir, expect.Value(cni.New(dir, cni.WithStateDir(w.path("state")), cni.WithDefaultConf))(t))
	other := watch(t, w.dir, w.Runtime)
	ctx, stop := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for _, call := range []func() error{
		func() error { return w.Load(cni.WithDefaultConf) },
		func() error { return w.Load(cni.WithLoNetwork, cni.WithAllConf) },
		w.Status,
		func() error {
			if err := w.Ready(ctx); err != nil && !strings.HasPrefix(err.Error(), "not ready\n") {
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
		group.Add(1)
		go func() {
			defer group.Done()
			for ctx.Err() == nil {
				if err := call(); err != nil && !errors.Is(err, cni.ErrCNINotInitialized) &&
					!errors.Is(err, cni.ErrInvalidConfig) && !errors.Is(err, cni.ErrRead) {
					t.Error(err)
					return
				}
			}
		}()
	}
	for n := range 20 {
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

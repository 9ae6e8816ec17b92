package thread

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/sandbox"
	"github.com/embedcni/cni/netns"
)

func TestMain(m *testing.M) {
	if dir, ok := os.LookupEnv(childEnv); ok {
		err := AtRoot(dir, func() error { return nil })
		fmt.Print(errors.Is(err, ErrRootNotPermitted), errors.Is(err, fs.ErrPermission), err)
		os.Exit(0)
	}
	os.Exit(sandbox.Main(m))
}

func TestInStaysOnAThreadThatIsInside(t *testing.T) {
	outside := expect.Value(netns.Current())(t)
	path := filepath.Join(t.TempDir(), "other")
	other, err := netns.Create(path)
	expect.NoError(t, err)
	t.Cleanup(func() { expect.NoError(t, errors.Join(outside.Close(), other.Close(), netns.Remove(path))) })
	type seen struct {
		ns     netns.ID
		thread int
	}
	look := func(ns *netns.Handle) (s seen) {
		t.Helper()
		expect.NoError(t, In(ns, func() (err error) {
			s.thread = unix.Gettid()
			s.ns, err = netns.CurrentID()
			return err
		}))
		return s
	}
	expect.NoError(t, other.Do(func() error { // locks the thread
		here := unix.Gettid()
		expect.Same(t, "inside already", look(other), seen{other.ID(), here})
		if got := look(outside); got.ns != outside.ID() || got.thread == here {
			t.Errorf("elsewhere: %+v, want in %v on another thread than %d", got, outside.ID(), here)
		}
		return nil
	}))
	failed := errors.New("failed")
	expect.Is(t, In(outside, func() error { return failed }), failed)
}

// namespaces makes n namespaces that live until the test ends.
func namespaces(t *testing.T, n int) []*netns.Handle {
	t.Helper()
	all := make([]*netns.Handle, n)
	for i := range all {
		path := filepath.Join(t.TempDir(), fmt.Sprint(i))
		ns := expect.Value(netns.Create(path))(t)
		all[i] = ns
		t.Cleanup(func() { expect.NoError(t, errors.Join(ns.Close(), netns.Remove(path))) })
	}
	return all
}

// place is where a thread is.
type place struct {
	ns     netns.ID
	thread int
}

func here(t *testing.T) place {
	t.Helper()
	id, err := netns.CurrentID()
	if err != nil {
		t.Error(err)
	}
	return place{id, unix.Gettid()}
}

// home returns the namespace of this process.
func home(t *testing.T) netns.ID {
	t.Helper()
	return expect.Value(netns.ProcessID())(t)
}

func TestATourIsAtHomeBetweenVisits(t *testing.T) {
	all, home, failed := namespaces(t, 3), home(t), errors.New("failed")
	err := OnTour(func(tour *Tour) error {
		on := unix.Gettid()
		expect.Same(t, "on the leading thread", on == os.Getpid(), false)
		for _, ns := range all {
			err := tour.In(ns, func() error {
				expect.Same(t, "visits", here(t), place{ns.ID(), on})
				return failed
			})
			expect.Is(t, err, failed)
			expect.Same(t, "then it is in", here(t), place{home, on})
		}
		return failed
	})
	expect.Is(t, err, failed)
}

// TestATourGoesOnWithoutANamespaceThatIsClosed: only that visit fails.
func TestATourGoesOnWithoutANamespaceThatIsClosed(t *testing.T) {
	all := namespaces(t, 2)
	expect.NoError(t, all[0].Close())
	expect.NoError(t, OnTour(func(tour *Tour) error {
		err := tour.In(all[0], func() error { t.Error("inside"); return nil })
		if !errors.Is(err, os.ErrClosed) || tour.Lost() != nil {
			t.Errorf("got %v, lost: %v", err, tour.Lost())
		}
		return tour.In(all[1], func() error { return nil })
	}))
}

// TestALostTourVisitsNobody, and its thread serves nobody else.
func TestALostTourVisitsNobody(t *testing.T) {
	all, home, failed := namespaces(t, 2), home(t), errors.New("failed")
	expect.NoError(t, OnTour(func(tour *Tour) error {
		err := tour.In(all[0], func() error { return errors.Join(failed, tour.home.Close()) })
		expect.Is(t, err, failed, os.ErrClosed, tour.Lost())
		expect.Is(t, tour.In(all[1], func() error { t.Error("inside"); return nil }), tour.Lost())
		return nil
	}))
	paths, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	for _, path := range paths {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			continue // the thread has ended
		}
		expect.Same(t, path, netns.ID{Dev: uint64(st.Dev), Ino: uint64(st.Ino)}, home)
	}
}

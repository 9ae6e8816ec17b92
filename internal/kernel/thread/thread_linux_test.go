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
	outside, err := netns.Current()
	expect.NoError(t, err)
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
	err = other.Do(func() error { // locks the thread
		here := unix.Gettid()
		if got, want := look(other), (seen{other.ID(), here}); got != want {
			t.Errorf("inside already: %+v, want %+v", got, want)
		}
		if got := look(outside); got.ns != outside.ID() || got.thread == here {
			t.Errorf("elsewhere: %+v, want in %v on another thread than %d", got, outside.ID(), here)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	failed := errors.New("failed")
	expect.Is(t, In(outside, func() error { return failed }), failed)
}

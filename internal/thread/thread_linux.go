// Package thread runs functions inside network namespaces, which must leave the thread as
// they find it, and with another root directory, as executed plugins have it where a daemon
// in a container runs them with the root of the host.
package thread

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/netns"
)

// In is ns.Do for such a function. If the calling thread is already inside, as
// usual for work on the host, it runs the function there: two changes of threads
// take longer than most of that work.
func In(ns *netns.Handle, fn func() error) error {
	if here, leave := inside(ns); here {
		defer leave()
		return fn()
	}
	return ns.Do(fn)
}

// inside reports whether the calling thread is in the namespace; if so, it keeps the
// goroutine on it until leave is called.
func inside(ns *netns.Handle) (yes bool, leave func()) {
	runtime.LockOSThread()
	if id, err := netns.CurrentID(); err == nil && id == ns.ID() {
		return true, runtime.UnlockOSThread
	}
	runtime.UnlockOSThread()
	return false, nil
}

// Tour is a thread that visits namespaces one after the other, and returns home
// from each. It belongs to the goroutine that is on it.
type Tour struct {
	home *netns.Handle
	lost error
}

// OnTour runs fn on a thread of its own, in the namespace of the calling thread. A
// visit by it is cheaper than [In], which changes threads twice for each.
func OnTour(fn func(*Tour) error) error {
	home, err := netns.Current()
	if err != nil {
		return err
	}
	err = home.Do(func() error { return fn(&Tour{home: home}) })
	return errors.Join(err, home.Close())
}

// In runs fn in a namespace. If the thread cannot return, that is the error of
// this visit and of all later ones.
func (t *Tour) In(ns *netns.Handle, fn func() error) error {
	if t.lost != nil {
		return t.lost
	}
	if err := enter(ns); err != nil {
		return err
	}
	err := fn()
	if back := enter(t.home); back != nil {
		t.lost = fmt.Errorf("return from network namespace %s: %w", ns.ID(), back)
	}
	return errors.Join(err, t.lost)
}

// Lost returns the reason why the thread could not return home, or nil. It ends
// with the tour.
func (t *Tour) Lost() error { return t.lost }

// enter moves the calling thread into a namespace, which stays open meanwhile.
func enter(ns *netns.Handle) error {
	raw, err := ns.File().SyscallConn()
	if err != nil {
		return fmt.Errorf("enter network namespace %s: %w", ns.ID(), err)
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = unix.Setns(int(fd), unix.CLONE_NEWNET) }); err != nil {
		inner = fmt.Errorf("%w: %w", os.ErrClosed, err)
	}
	if inner != nil {
		return fmt.Errorf("enter network namespace %s: %w", ns.ID(), inner)
	}
	return nil
}

// CanChangeRoot reports whether AtRoot works on this system.
const CanChangeRoot = true

// AtRoot runs fn on a thread of its own, whose root and working directory are dir. Paths,
// symbolic links and /proc are then those that a process sees which is started with that
// root. The rest of the process keeps its root, and so do goroutines that fn starts. The
// thread ends with fn. It needs CAP_SYS_CHROOT (chroot(2)).
//
// If dir cannot be entered, fn is not called, and the error is a *fs.PathError.
func AtRoot(dir string, fn func() error) error {
	home, err := netns.Current()
	if err != nil {
		return err
	}
	defer func() { _ = home.Close() }() // the thread was in it already
	return home.Do(func() error {
		runtime.LockOSThread()                              // for good: nobody else must get a thread with another root
		if err := unix.Unshare(unix.CLONE_FS); err != nil { // else all threads share one root
			return rootError("unshare", dir, err)
		}
		if err := unix.Chroot(dir); err != nil {
			return rootError("chroot", dir, err)
		}
		if err := unix.Chdir("/"); err != nil {
			return rootError("chdir", dir, err)
		}
		return fn()
	})
}

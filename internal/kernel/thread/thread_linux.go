package thread

import (
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

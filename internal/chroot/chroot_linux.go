package chroot

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Supported reports whether Do works on this system.
const Supported = true

// Do runs fn on a thread of its own, whose root and working directory are dir. Paths,
// symbolic links and /proc are then those that a process sees which is started with that
// root. The rest of the process keeps its root, and so do goroutines that fn starts. The
// thread ends with fn. It needs CAP_SYS_CHROOT (chroot(2)).
//
// If dir cannot be entered, fn is not called, and the error is a *fs.PathError.
func Do(dir string, fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: nobody else must get a thread with another root
		if unix.Gettid() == unix.Getpid() {
			// This is the process's leading thread. It does not end with its goroutine, and
			// /proc/self shows its root. While it is locked, another goroutine is elsewhere.
			defer runtime.UnlockOSThread()
			done <- Do(dir, fn)
			return
		}
		done <- inside(dir, fn)
	}()
	return <-done
}

// inside changes the calling thread for good.
func inside(dir string, fn func() error) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil { // else all threads share one root
		return failed("unshare", dir, err)
	}
	if err := unix.Chroot(dir); err != nil {
		return failed("chroot", dir, err)
	}
	if err := unix.Chdir("/"); err != nil {
		return failed("chdir", dir, err)
	}
	return fn()
}

// Package thread runs functions inside network namespaces. The functions must
// leave the thread as they find it.
package thread

import (
	"runtime"

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

// Package thread runs functions inside network namespaces that leave the thread
// as they find it.
package thread

import (
	"runtime"

	"github.com/embedcni/cni/netns"
)

// In is ns.Do for such a function. It runs on the calling thread if that is inside
// already, as it is, as a rule, for what is done on the host: two changes of
// threads take longer than most of that.
func In(ns *netns.Handle, fn func() error) error {
	if here, leave := inside(ns); here {
		defer leave()
		return fn()
	}
	return ns.Do(fn)
}

// inside tells whether the calling thread is in the namespace, and then keeps the
// goroutine on it until leave is called.
func inside(ns *netns.Handle) (yes bool, leave func()) {
	runtime.LockOSThread()
	if id, err := netns.CurrentID(); err == nil && id == ns.ID() {
		return true, runtime.UnlockOSThread
	}
	runtime.UnlockOSThread()
	return false, nil
}

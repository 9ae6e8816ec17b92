package netns

import (
	"runtime"

	vns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/joined"
)

// Do runs fn in the namespace that path means, as [Handle.Do] does. It opens the
// namespace as [Open] does, and lets go of it afterwards.
func Do(path string, fn func() error) (err error) {
	h, err := Open(path)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := h.Close(); cerr != nil {
			err = joined.Errors(err, cerr)
		}
	}()
	return h.Do(fn)
}

// Do runs fn on an OS thread inside the namespace and returns fn's error.
//
// fn runs in a goroutine of its own, locked to a thread that is never the process's
// leading thread, because other processes take the leading thread's namespace for the
// process's.
//
//   - Goroutines that fn starts are outside the namespace: they run on other threads.
//   - Processes that fn starts, by os/exec or otherwise, are inside, and stay there after
//     Do. Their mounts are the caller's: /sys shows the network devices of the namespace
//     in which it was mounted.
//   - Sockets, and other descriptors, stay in the namespace in which they were opened,
//     whoever uses them. Package net looks up names, and tries the addresses of a name,
//     in goroutines of its own: give it addresses.
//   - With SysProcAttr.Pdeathsig, a process ends when its thread does, which can be
//     right after Do.
//   - fn may lock and unlock its thread in pairs, but must not unlock it once more.
//
// Afterwards the thread returns to its previous namespace. If that fails, the thread
// ends with the goroutine instead of returning to the scheduler; fn's error is not
// affected.
//
// A panic in fn is raised again in the caller, with the same value. [runtime.Goexit]
// in fn, as in testing's FailNow, ends the caller's goroutine too.
func (h *Handle) Do(fn func() error) error {
	return onThread(h.enter, fn)
}

// enter moves the calling thread into the namespace.
func (h *Handle) enter() (err error) {
	defer naming(&err, "enter network namespace %s", h.id)
	return control(h.file, func(fd int) error { return privileged(vns.Set(vns.NsHandle(fd))) })
}

// outcome is how a function ended.
type outcome struct {
	err      error
	panicked bool
	value    any // of a panic
	exited   bool
}

// end makes the calling goroutine end as the function did.
func (o outcome) end() error {
	switch {
	case o.panicked:
		panic(o.value)
	case o.exited:
		runtime.Goexit()
	}
	return o.err
}

// onThread runs enter, which changes the thread's namespace, and fn in a
// goroutine that has a thread for itself, restores the thread, and ends as fn
// did.
func onThread(enter, fn func() error) error {
	done := make(chan outcome, 1)
	go avoidLeader(func() { confined(enter, fn, done) })
	return (<-done).end()
}

// avoidLeader runs fn in this goroutine, or in another if this one happens to
// be on the process's leading thread, which it occupies so that the other
// cannot be there too. fn is called with its thread locked once.
func avoidLeader(fn func()) {
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		fn()
		return // still locked, unless fn found the thread fit for others
	}
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		runtime.LockOSThread()
		fn()
	}()
	<-finished
	runtime.UnlockOSThread()
}

// confined runs enter and fn on the calling thread, unlocks the thread if it
// is then back where it was, and sends how fn ended. It does the latter two
// when deferred, as fn may end the goroutine.
func confined(enter, fn func() error, done chan<- outcome) {
	origin, err := openOrigin()
	if err != nil {
		runtime.UnlockOSThread()
		done <- outcome{err: err}
		return
	}
	out := outcome{exited: true} // unless fn returns or panics
	defer func() {
		if out.exited {
			if v := recover(); v != nil {
				out = outcome{panicked: true, value: v}
			}
		}
		// Even if enter failed: it may have failed in its second step.
		if vns.Set(vns.NsHandle(origin)) == nil {
			runtime.UnlockOSThread()
		}
		// An error of Close does not concern the caller.
		_ = unix.Close(origin)
		done <- out
	}()
	if err := enter(); err != nil {
		out = outcome{err: err}
		return
	}
	out = outcome{err: fn()}
}

// openOrigin opens the namespace of the calling thread, to come back to it. It
// asks for nothing that setns does not find out itself, so it takes one call of
// the kernel where Current takes six.
func openOrigin() (fd int, err error) {
	err = restart(func() (err error) {
		fd, err = unix.Open(threadNetNS, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return -1, procError("open the thread's network namespace", err)
	}
	return fd, nil
}

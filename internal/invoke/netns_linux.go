package invoke

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// threadNetNS is the network namespace of the calling thread.
const threadNetNS = "/proc/thread-self/ns/net"

// startIn calls start on a thread that is in ns. That is the calling thread if
// ns is nil or the thread is already there: a process inherits the namespaces of
// the thread that forks it.
func startIn(ns NetNS, start func() error) error {
	if ns == nil {
		return start()
	}
	runtime.LockOSThread() // the compared thread must be the forking one
	there, err := threadIsIn(ns.File())
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	if there {
		defer runtime.UnlockOSThread()
		return start()
	}
	runtime.UnlockOSThread()
	// Use another goroutine, so that a thread which cannot return ends with that
	// goroutine rather than with the caller's.
	result := make(chan error, 1)
	go func() { result <- startEntered(ns.File(), start) }()
	return <-result
}

// startEntered moves the thread of its goroutine to ns and back. If it cannot
// return, the goroutine keeps the thread and both end: no other goroutine may
// run in a namespace that it did not choose.
func startEntered(ns *os.File, start func() error) error {
	runtime.LockOSThread()
	own, err := os.Open(threadNetNS)
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer own.Close()
	if err := enter(ns); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	err = start()
	if enter(own) == nil {
		runtime.UnlockOSThread()
	}
	return err
}

func enter(ns *os.File) error {
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", ns.Name(), err)
	}
	return nil
}

// threadIsIn compares namespaces by device and inode.
func threadIsIn(ns *os.File) (bool, error) {
	own, err := os.Stat(threadNetNS)
	if err != nil {
		return false, err
	}
	wanted, err := ns.Stat()
	if err != nil {
		return false, fmt.Errorf("network namespace: %w", err)
	}
	return os.SameFile(own, wanted), nil
}

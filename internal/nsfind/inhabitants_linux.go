package nsfind

import (
	"fmt"
	"os"

	"github.com/embedcni/cni/internal/proc"
	"github.com/embedcni/cni/netns"
)

// Inhabitants returns the visible threads by network namespace. It looks at threads
// rather than processes, since a program that serves a container from outside may
// have a single thread in the namespace. It takes some microseconds for each thread
// on the machine, so it is called only for namespaces that no path leads to.
func Inhabitants() (map[netns.ID][]proc.Task, error) {
	found := make(map[netns.ID][]proc.Task)
	_, err := proc.EachTask("/proc", func(t proc.Task) bool {
		// Threads that have ended, and those that may not be looked at, are left out.
		if id, ok := At(t.NetNS()); ok {
			found[id] = append(found[id], t)
		}
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("look for processes in a namespace: %w", err)
	}
	return found, nil
}

// OpenInhabited opens the namespace with that identity through a thread in it. It
// returns nil if no visible thread is in one. The kernel gives the number of a
// namespace that has ended to the next one, so the caller must verify which it is.
func OpenInhabited(want netns.ID) (*netns.Handle, error) {
	found, err := Inhabitants()
	if err != nil {
		return nil, err
	}
	for _, t := range found[want] {
		ns, err := netns.Open(t.NetNS())
		switch {
		case proc.Gone(err):
		case err != nil:
			return nil, err
		case ns.ID() == want:
			return ns, nil
		default:
			if err := ns.Close(); err != nil {
				return nil, err
			}
		}
	}
	return nil, nil
}

// DescriptorPath returns a path by which other processes reach a namespace that this
// process has open.
func DescriptorPath(ns *netns.Handle) string {
	fd := ns.File().Fd()
	path := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd)
	if LeadsTo(path, ns) {
		return path
	}
	// The leading thread has ended, or has descriptors of its own.
	all, err := proc.TasksOf("/proc", os.Getpid())
	if err != nil {
		return path
	}
	for _, t := range all {
		if other := fmt.Sprintf("%s/fd/%d", t.Dir, fd); LeadsTo(other, ns) {
			return other
		}
	}
	return path
}

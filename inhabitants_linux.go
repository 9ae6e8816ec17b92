package cni

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/tasks"
	"github.com/embedcni/cni/netns"
)

// inhabitants are the threads that can be seen, by the network namespace that
// they are in. A thread is enough for a namespace to be somebody's: of a program
// that serves a container from outside, one may be all there is. It takes some
// microseconds for each thread there is, so it is for what no path leads to.
func inhabitants() (map[netns.ID][]tasks.Task, error) {
	found := make(map[netns.ID][]tasks.Task)
	_, err := tasks.Each("/proc", func(t tasks.Task) bool {
		// One that has ended since is in none, and one that may not be looked at
		// cannot be found.
		if id, ok := netNSAt(t.NetNS()); ok {
			found[id] = append(found[id], t)
		}
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("look for processes in a namespace: %w", err)
	}
	return found, nil
}

// netNSAt is the identity of the namespace at a path, if it can be asked for.
func netNSAt(path string) (netns.ID, bool) {
	var st unix.Stat_t
	for {
		err := unix.Stat(path, &st)
		if err == nil {
			return netns.ID{Dev: uint64(st.Dev), Ino: uint64(st.Ino)}, true
		}
		if !errors.Is(err, unix.EINTR) {
			return netns.ID{}, false
		}
	}
}

// openInhabited opens the namespace of a thread if it has that identity. The
// number of one that has ended is given to the next, so whether it is the one
// that is meant is to be found out. It returns nil if there is none.
func openInhabited(want netns.ID) (*netns.Handle, error) {
	found, err := inhabitants()
	if err != nil {
		return nil, err
	}
	for _, t := range found[want] {
		ns, err := netns.Open(t.NetNS())
		switch {
		case tasks.Gone(err):
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

// descriptorPath leads other processes to an open namespace of this one.
func descriptorPath(ns *netns.Handle) string {
	fd := ns.File().Fd()
	path := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd)
	if leadsTo(path, ns) {
		return path
	}
	// The leading thread has ended, or has descriptors of its own.
	all, err := tasks.Of("/proc", os.Getpid())
	if err != nil {
		return path
	}
	for _, t := range all {
		if other := fmt.Sprintf("%s/fd/%d", t.Dir, fd); leadsTo(other, ns) {
			return other
		}
	}
	return path
}

package cni

import (
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/tasks"
	"github.com/embedcni/cni/netns"
)

// foreign returns an error if a namespace is the host's. Such a path is a mistake,
// for example a /proc/PID/ns/net whose PID now belongs to another process. A DEL in
// it would remove the host's interfaces.
func (h *hostNetNS) foreign(container netns.ID, path string) error {
	whose, err := h.hosts(container, path)
	if err != nil || whose == "" {
		return err
	}
	return fmt.Errorf("%s is the network namespace %s, not a container's; if the container's is gone, remove with an empty path: %w",
		path, whose, ErrInvalidNetNS)
}

// hosts describes whose namespace ns is if it is the host's, and returns "" if it is
// not. The namespace of this process's leading thread does not count: the usual way
// to make a container's namespace leaves a thread in it for good, and that may be
// the leading thread.
//
// The process's own namespace counts as the host's, also where plugins run in another
// namespace. A program may attach itself, though. So its namespace is accepted as a
// container's if it is mounted at path, but not if path goes through a process, whose
// number may now belong to another process.
func (h *hostNetNS) hosts(ns netns.ID, path string) (whose string, err error) {
	if ns == h.ID() {
		return "that plugins run in", nil
	}
	if first, ok := h.first(); ok && ns == first {
		return "of process 1", nil
	}
	if mountedAt(path, ns) {
		return "", nil
	}
	own, err := netns.ProcessID()
	if err == nil && ns == own {
		whose = "of this process"
	}
	return whose, err
}

// first returns the result of firstNetNS, which the runtime calls once, since it is
// slow.
func (h *hostNetNS) first() (netns.ID, bool) {
	if h.paths == nil {
		return firstNetNS("/proc")
	}
	return h.paths.first()
}

// firstNetNS returns the network namespace of process 1. It returns false if this
// process is process 1, or has no privilege to look at it.
//
// The leading thread of process 1 may be in a container's namespace. So firstNetNS
// returns the first namespace that two of its threads are in, or else the first one
// that it saw.
func firstNetNS(proc string) (netns.ID, bool) {
	if os.Getpid() == 1 {
		return netns.ID{}, false
	}
	all, err := tasks.Of(proc, 1)
	if err != nil {
		return netns.ID{}, false
	}
	var seen []netns.ID
	for _, t := range all {
		id, ok := netNSAt(t.NetNS())
		if ok && slices.Contains(seen, id) {
			return id, true
		}
		if ok {
			seen = append(seen, id)
		}
	}
	if len(seen) == 0 {
		return netns.ID{}, false
	}
	return seen[0], true
}

// mountedAt reports whether the namespace is mounted at path. It is false for a link
// to the namespace.
func mountedAt(path string, ns netns.ID) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) == nil && ns == netns.ID{Dev: uint64(st.Dev), Ino: uint64(st.Ino)}
}

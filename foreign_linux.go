package cni

import (
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/tasks"
	"github.com/embedcni/cni/netns"
)

// foreign refuses a namespace that is the host's. As a container's it is a
// mistake, for example a /proc/PID/ns/net whose PID is another process's by now,
// and DEL would take the host's interfaces down.
func (h *hostNetNS) foreign(container netns.ID, path string) error {
	whose, err := h.hosts(container, path)
	if err != nil || whose == "" {
		return err
	}
	return fmt.Errorf("%s is the network namespace %s, not a container's; if the container's is gone, remove with an empty path: %w",
		path, whose, ErrInvalidNetNS)
}

// hosts says how a namespace is the host's; empty if it is not. Where the leading
// thread of this process is says nothing: the usual way to make a container's
// namespace leaves a thread in it for good, which may be the leading one.
//
// The process's own is the host's where plugins run in another, of the runtime's
// choice. It may be meant as a container's, by a program that attaches itself; it
// is not where the path goes by a process, since that may have become another's.
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

// first is firstNetNS, which takes a while, of the runtime.
func (h *hostNetNS) first() (netns.ID, bool) {
	if h.paths == nil {
		return firstNetNS("/proc")
	}
	return h.paths.first()
}

// firstNetNS is the namespace of process 1. It is unknown if that may not be looked
// at, as without privileges, and if it is this process.
//
// Process 1 may be a program with its leading thread in a container's namespace
// itself, so the first namespace counts that two of its threads are in.
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

// mountedAt reports whether the namespace itself is at path, and no link to it.
func mountedAt(path string, ns netns.ID) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) == nil && ns == netns.ID{Dev: uint64(st.Dev), Ino: uint64(st.Ino)}
}

package nsfind

import (
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/proc"
	"github.com/embedcni/cni/netns"
)

// First returns the network namespace of process 1. It returns false if this
// process is process 1, or has no privilege to look at it.
//
// The leading thread of process 1 may be in a container's namespace. So First
// returns the first namespace that two of its threads are in, or else the first one
// that it saw.
func First(dir string) (netns.ID, bool) {
	if os.Getpid() == 1 {
		return netns.ID{}, false
	}
	all, err := proc.TasksOf(dir, 1)
	if err != nil {
		return netns.ID{}, false
	}
	var seen []netns.ID
	for _, t := range all {
		id, ok := At(t.NetNS())
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

// MountedAt reports whether the namespace is mounted at path. It is false for a link
// to the namespace.
func MountedAt(path string, ns netns.ID) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) == nil && ns == netns.ID{Dev: uint64(st.Dev), Ino: uint64(st.Ino)}
}

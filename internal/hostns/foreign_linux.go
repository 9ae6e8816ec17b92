package hostns

import (
	"fmt"

	"github.com/embedcni/cni/internal/nsfind"
	"github.com/embedcni/cni/netns"
)

// foreign returns an error if a namespace is the host's. Such a path is a mistake,
// for example a /proc/PID/ns/net whose PID now belongs to another process. A DEL in
// it would remove the host's interfaces.
func (h *NetNS) foreign(container netns.ID, path string) error {
	whose, err := h.WhoseHost(container, path)
	if err != nil || whose == "" {
		return err
	}
	return fmt.Errorf("%s is the network namespace %s, not a container's; if the container's is gone, remove with an empty path: %w",
		path, whose, ErrInvalid)
}

// WhoseHost describes whose namespace ns is if it is the host's, and returns "" if it is
// not. The namespace of this process's leading thread does not count: the usual way
// to make a container's namespace leaves a thread in it for good, and that may be
// the leading thread.
//
// The process's own namespace counts as the host's, also where plugins run in another
// namespace. A program may attach itself, though. So its namespace is accepted as a
// container's if it is mounted at path, but not if path goes through a process, whose
// number may now belong to another process.
func (h *NetNS) WhoseHost(ns netns.ID, path string) (whose string, err error) {
	if ns == h.ID() {
		return "that plugins run in", nil
	}
	if first, ok := h.finder.first(); ok && ns == first {
		return "of process 1", nil
	}
	if nsfind.MountedAt(path, ns) {
		return "", nil
	}
	own, err := netns.ProcessID()
	if err == nil && ns == own {
		whose = "of this process"
	}
	return whose, err
}

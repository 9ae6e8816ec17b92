package nsfind

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/netns"
)

// At returns the identity of the namespace at a path. It returns false if the
// path cannot be followed.
func At(path string) (netns.ID, bool) {
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

// Identify returns the identity of the namespace at a path.
func Identify(path string) (netns.ID, error) {
	ns, err := netns.Open(path)
	if err != nil {
		return netns.ID{}, err
	}
	return ns.ID(), ns.Close()
}

// LeadsTo reports whether path still leads to the namespace.
func LeadsTo(path string, ns *netns.Handle) bool {
	id, ok := At(path)
	return ok && id == ns.ID()
}

// LeadsNowhere reports whether an error says that a path leads to no namespace,
// rather than that it could not be followed.
func LeadsNowhere(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, netns.ErrNotNetNS) ||
		errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ESRCH)
}

// View identifies the mount namespace, the PID namespace and the root directory of
// the calling thread, which decide where a path leads; see [record.NetNS]. It is
// empty if one of them cannot be read.
func View() string {
	var mounts, pids, root unix.Stat_t
	if unix.Stat("/proc/thread-self/ns/mnt", &mounts) != nil ||
		unix.Stat("/proc/thread-self/ns/pid", &pids) != nil || unix.Stat("/", &root) != nil {
		return ""
	}
	return fmt.Sprintf("mnt:[%d] pid:[%d] root:%d:%d", mounts.Ino, pids.Ino, root.Dev, root.Ino)
}

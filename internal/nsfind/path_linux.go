package nsfind

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/netns"
)

// At returns the identity of the file at a path, without opening it. It returns
// false if the path cannot be followed.
func At(path string) (netns.ID, bool) {
	id, err := stat(path)
	return id, err == nil
}

// stat is stat(2), again if a signal interrupts it.
func stat(path string) (netns.ID, error) {
	var st unix.Stat_t
	for {
		if err := unix.Stat(path, &st); !errors.Is(err, unix.EINTR) {
			return netns.ID{Dev: uint64(st.Dev), Ino: uint64(st.Ino)}, err
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

// LeadsAway reports whether a path certainly does not lead to a namespace: the path
// does not exist, or leads to something else. It is false for a path that cannot be
// followed, and for one that depends on the process that follows it.
func LeadsAway(path string, ns netns.ID) bool {
	if !filepath.IsAbs(path) {
		return false
	}
	for _, own := range []string{"/proc/self/", "/proc/thread-self/", "/dev/fd/"} {
		if strings.HasPrefix(filepath.Clean(path), own) {
			return false
		}
	}
	id, err := stat(path)
	if err != nil {
		return LeadsNowhere(err)
	}
	return id != ns
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

// WithView calls f, locked to its thread, with the view of that thread.
func WithView(f func(view string)) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	f(View())
}

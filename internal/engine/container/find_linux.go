package container

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/proc"
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

// identify returns the identity of the namespace at a path.
func identify(path string) (netns.ID, error) {
	ns, err := netns.Open(path)
	if err != nil {
		return netns.ID{}, err
	}
	return ns.ID(), ns.Close()
}

// leadsTo reports whether path still leads to the namespace.
func leadsTo(path string, ns *netns.Handle) bool {
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

// firstNetNS returns the network namespace of process 1. It returns false if this
// process is process 1, or has no privilege to look at it.
//
// The leading thread of process 1 may be in a container's namespace. So firstNetNS
// returns the first namespace that two of its threads are in, or else the first one
// that it saw.
func firstNetNS(dir string) (netns.ID, bool) {
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

// mountedAt reports whether the namespace is mounted at path. It is false for a link
// to the namespace.
func mountedAt(path string, ns netns.ID) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) == nil && ns == netns.ID{Dev: uint64(st.Dev), Ino: uint64(st.Ino)}
}

// inhabited returns the inodes of the namespaces that a visible thread is in. It looks at
// threads rather than processes, since a program that serves a container from outside may
// have a single thread in the namespace. It is called only for namespaces that no path
// leads to.
func inhabited() (map[uint64]bool, error) {
	found := make(map[uint64]bool)
	// Threads that may not be looked at are left out.
	_, err := proc.Scan("/proc", proc.Thread, func(r proc.Ref) bool {
		found[r.Inode] = true
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("look for processes in a namespace: %w", err)
	}
	return found, nil
}

// search opens the namespace with that identity through a thread in it or, by [proc.Any],
// whatever a visible process refers to it by. It returns nil if there is none; complete
// reports whether it could look at every process. The kernel gives the number of a
// namespace that has ended to the next one, so the caller must verify which it is.
func search(want netns.ID, by proc.RefKind) (found *netns.Handle, complete bool, err error) {
	complete, err = proc.Scan("/proc", by, func(r proc.Ref) bool {
		if r.Inode == want.Ino {
			found = openIf(r.Path, want)
		}
		return found == nil
	})
	if err != nil {
		return nil, false, fmt.Errorf("look for a namespace: %w", err)
	}
	return found, complete, nil
}

// openIf opens the namespace to which a path leads, if it has that identity. Otherwise it
// returns nil.
func openIf(path string, want netns.ID) *netns.Handle {
	ns, err := netns.Open(path)
	if err == nil && ns.ID() != want {
		_ = ns.Close() // was only looked at
	} else if err == nil {
		return ns
	}
	return nil
}

// descriptorPath returns a path by which other processes reach a namespace that this
// process has open.
func descriptorPath(ns *netns.Handle) string {
	fd := ns.File().Fd()
	path := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd)
	if leadsTo(path, ns) {
		return path
	}
	// The leading thread has ended, or has descriptors of its own.
	all, err := proc.TasksOf("/proc", os.Getpid())
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

// firstRoot is the root directory of the first process of the machine, or of the container
// in which this program runs.
const firstRoot = "/proc/1/root"

// hiddenFrom reports whether a process sees another file than a namespace at the path at
// which that is mounted. root is the process's root, such as [firstRoot]. It is false if the
// process may not be looked at, or sees nothing there.
func hiddenFrom(root, path string, ns netns.ID) bool {
	path, err := filepath.EvalSymlinks(path) // an absolute link would lead out of root
	id, ok := At(root + path)
	return err == nil && ok && id != ns
}

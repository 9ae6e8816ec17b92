package nsfind

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/cut"
	"github.com/embedcni/cni/internal/tasks"
)

// Each calls f with paths that may lead to the namespace with that identity,
// until f returns true: paths of threads in it, of mounts in any mount namespace, and
// of open descriptors. complete reports whether it could look into every process. The
// kernel may deny that for processes of another user namespace.
func Each(proc, id string, f func(path string) bool) (complete bool, err error) {
	_, number, ok := strings.Cut(id, ":")
	if !ok {
		return false, fmt.Errorf("%q is not the identity of a namespace", id)
	}
	s := netNSSearch{link: "net:[" + number + "]", seen: map[string]bool{}}
	unread, found := false, false
	complete, err = tasks.Each(proc, func(t tasks.Task) (more bool) {
		candidates, err := s.through(t)
		unread = unread || err != nil
		found = slices.ContainsFunc(candidates, f)
		return !found
	})
	if found || err != nil {
		return found, err
	}
	return complete && !unread, nil
}

// netNSSearch looks for a namespace by the text of the links to it.
type netNSSearch struct {
	link string
	seen map[string]bool // mount namespaces whose mounts were read
}

// through returns the paths to the namespace under a thread's directory in /proc.
func (s *netNSSearch) through(t tasks.Task) (paths []string, err error) {
	defer func() {
		if tasks.Gone(err) {
			err = nil // the thread has ended meanwhile
		}
	}()
	ns, err := os.Readlink(t.NetNS())
	if err != nil {
		return nil, err
	}
	if ns == s.link {
		paths = append(paths, t.NetNS())
	}
	mounts, err := os.Readlink(t.Dir + "/ns/mnt")
	if err != nil {
		return paths, err
	}
	if !s.seen[mounts] {
		s.seen[mounts] = true
		paths = append(paths, mountsIn(t.Dir, s.link)...)
	}
	if !t.Leads() && sharesFiles(t) {
		return paths, nil // the descriptors of its leading thread were read
	}
	fds, err := os.ReadDir(t.Dir + "/fd")
	for _, fd := range fds {
		path := filepath.Join(t.Dir, "fd", fd.Name())
		if to, _ := os.Readlink(path); to == s.link { // else it is closed by now
			paths = append(paths, path)
		}
	}
	return paths, err
}

// sharesFiles reports whether a thread shares the descriptors of its leading thread,
// as nearly all threads do. It is false if the kernel cannot compare them.
func sharesFiles(t tasks.Task) bool {
	const files = 2 // KCMP_FILES in the kernel's include/uapi/linux/kcmp.h
	differ, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(t.PID), uintptr(t.TID), files, 0, 0, 0)
	return errno == 0 && differ == 0
}

// Mounts returns the paths at which a process sees the namespace mounted.
func Mounts(process string, ino uint64) []string {
	return mountsIn(filepath.Join("/proc", process), fmt.Sprintf("net:[%d]", ino))
}

// mountsIn are the same, through the process's root.
//
//	512 24 0:4 net:[4026532231] /run/netns/host rw shared:253 - nsfs nsfs rw
func mountsIn(process, link string) (paths []string) {
	data, err := os.ReadFile(process + "/mountinfo")
	if err != nil {
		return nil // the process has ended, or its other links could not be read either
	}
	for line := range cut.Lines(data) {
		fields := strings.Fields(string(line))
		if len(fields) < 5 || fields[3] != link {
			continue
		}
		path := unescaped(fields[4])
		if process != "/proc/thread-self" {
			path = filepath.Join(process, "root", path)
		}
		paths = append(paths, path)
	}
	return paths
}

// unescaped undoes the octal escapes of proc_pid_mountinfo(5).
func unescaped(path string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(path)
}

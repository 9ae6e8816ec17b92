package cni

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/cut"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/tasks"
	"github.com/embedcni/cni/netns"
)

// hostPaths knows where host namespaces are found: for the record, so that a
// later call from another namespace can enter the one that the plugins ran in.
type hostPaths struct {
	mu    sync.Mutex
	known map[netns.ID]string

	first func() (netns.ID, bool) // firstNetNS, called once: process 1 does not move

	searching sync.Mutex
	missed    map[string]miss // by identity, as records have it
}

func newHostPaths() *hostPaths {
	return &hostPaths{first: sync.OnceValues(func() (netns.ID, bool) { return firstNetNS("/proc") })}
}

// miss is a search that found nothing.
type miss struct {
	at       time.Time
	complete bool
}

// missFor is how long a search that found nothing is not repeated: a Recover of a
// thousand containers of one host looks once.
const missFor = time.Second

// hostPath returns a path to the namespace that the plugins run in, for others to
// find it by; empty if there is none.
func (op *operation) hostPath() string {
	if op.hostNetNS != "" {
		if abs, err := filepath.Abs(op.hostNetNS); err == nil {
			return abs
		}
	}
	return op.paths.to(op.host)
}

func (p *hostPaths) to(h *hostNetNS) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	path, ok := p.known[h.ID()]
	if ok && (path == "" || leadsTo(path, h.Handle)) {
		return path
	}
	path = firstPath
	if !leadsTo(path, h.Handle) {
		path = ""
		for _, mounted := range mountedNetNS("thread-self", h.ID().Ino) {
			if leadsTo(mounted, h.Handle) {
				path = mounted
				break
			}
		}
	}
	if p.known == nil {
		p.known = make(map[netns.ID]string)
	}
	p.known[h.ID()] = path
	return path
}

// firstPath leads to the namespace of the machine's, or the container's, first
// process.
const firstPath = "/proc/1/ns/net"

// findHost opens the namespace that a record says its plugins ran in; nil if it is
// not found, and then whether it is gone for certain.
func (op *operation) findHost(rec *record.Record) (found *hostNetNS, certain bool, err error) {
	isIt := func(path string) *netns.Handle {
		h, err := netns.Open(path)
		if err != nil {
			return nil
		}
		if h.ID().String() != rec.Host {
			_ = h.Close() // was only looked at
			return nil
		}
		return h
	}
	for _, path := range []string{rec.HostPath, op.hostNetNS, firstPath, "/proc/thread-self/ns/net"} {
		if path == "" {
			continue
		}
		if h := isIt(path); h != nil {
			return &hostNetNS{Handle: h, paths: op.paths}, false, nil
		}
	}
	op.paths.searching.Lock()
	defer op.paths.searching.Unlock()
	if m, ok := op.paths.missed[rec.Host]; ok && time.Since(m.at) < missFor {
		return nil, m.complete && seesAll(rec), nil
	}
	complete, err := eachNetNS("/proc", rec.Host, func(path string) bool {
		h := isIt(path)
		if h != nil {
			found = &hostNetNS{Handle: h, paths: op.paths}
		}
		return h != nil
	})
	if found != nil || err != nil {
		return found, false, err
	}
	if op.paths.missed == nil {
		op.paths.missed = make(map[string]miss)
	}
	op.paths.missed[rec.Host] = miss{time.Now(), complete}
	return nil, complete && seesAll(rec), nil
}

// initPIDNS is the inode of the machine's first PID namespace (PROC_PID_INIT_INO
// in the kernel's include/linux/proc_ns.h).
const initPIDNS = 0xEFFFFFFC

// seesAll reports whether every process that can be in the record's host
// namespace is visible from this one: it is in the PID namespace of the runtime
// that wrote the record, or in the machine's first.
func seesAll(rec *record.Record) bool {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &st); err != nil {
		return false
	}
	return st.Ino == initPIDNS || rec.PIDNS != 0 && st.Ino == rec.PIDNS
}

// eachNetNS calls f with paths that may lead to the namespace with that identity,
// until f returns true: paths of threads in it, of mounts in any mount namespace, and
// of open descriptors. complete reports whether it could look into every process. The
// kernel may deny that for processes of another user namespace.
func eachNetNS(proc, id string, f func(path string) bool) (complete bool, err error) {
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

// mountedNetNS are the paths at which a process sees the namespace mounted.
func mountedNetNS(process string, ino uint64) []string {
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

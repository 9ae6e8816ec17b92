package proc

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/joined"
)

// RefKind is what keeps a namespace alive.
type RefKind int

const (
	Thread RefKind = iota // a thread is in it
	Any                   // or it is mounted somewhere, or a process has it open
)

// Ref is a reference to a network namespace.
type Ref struct {
	Inode uint64 // of the namespace
	Path  string // leads to it, through a thread's directory in /proc
}

// Scan calls f with each reference to a network namespace, until f returns false: with all
// kinds, or the threads alone, which takes some microseconds for each. Mounts are listed
// once for each mount namespace. complete reports whether Scan could look into every
// process; the kernel may deny that for processes of another user namespace.
func Scan(proc string, of RefKind, f func(Ref) (more bool)) (complete bool, err error) {
	var own unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &own); err != nil {
		return false, fmt.Errorf("look up a network namespace: %w", err)
	}
	s := scan{of: of, seen: map[string]bool{}, device: uint64(own.Dev), f: f}
	unread := false
	complete, err = eachTask(proc, func(t Task) bool {
		err := s.through(t)
		unread = unread || err != nil
		return !s.stopped
	})
	return complete && !unread, err
}

// scan is a Scan in progress.
type scan struct {
	of      RefKind
	seen    map[string]bool // mount namespaces whose mounts were read
	device  uint64          // of all namespaces
	f       func(Ref) bool
	stopped bool
}

// found passes a reference on, unless f has stopped the scan.
func (s *scan) found(r Ref) { s.stopped = s.stopped || !s.f(r) }

// through finds the references under a thread's directory in /proc.
func (s *scan) through(t Task) (err error) {
	defer func() {
		if Gone(err) {
			err = nil // the thread has ended meanwhile
		}
	}()
	own, err := os.Readlink(t.NetNS())
	if err != nil {
		return err
	}
	if inode, ok := inodeOf(own); ok {
		s.found(Ref{inode, t.NetNS()})
	}
	if s.of == Thread {
		return nil
	}
	mounts, err := os.Readlink(t.Dir + "/ns/mnt")
	if err != nil {
		return err
	}
	if !s.seen[mounts] {
		s.seen[mounts] = true
		if err := s.mounts(t); err != nil {
			return err
		}
	}
	if !t.Leads() && sharesFiles(t) {
		return nil // the descriptors of its leading thread were read
	}
	fds, err := os.ReadDir(t.Dir + "/fd")
	for _, fd := range fds {
		path := filepath.Join(t.Dir, "fd", fd.Name())
		inode, ok, oerr := s.open(path)
		if ok {
			s.found(Ref{inode, path})
		} else if oerr != nil && !Gone(oerr) { // else it is closed by now
			err = joined.Errors(err, oerr)
		}
	}
	return err
}

// open returns the number of the namespace that a descriptor refers to, if it does. The
// link has the number, or the path of the mount through which it was opened.
func (s *scan) open(fd string) (inode uint64, ok bool, err error) {
	to, err := os.Readlink(fd)
	if inode, ok = inodeOf(to); ok || err != nil || !strings.HasPrefix(to, "/") {
		return inode, ok, err
	}
	var st unix.Statx_t
	// A server of a network file system may be gone: it is not asked.
	for {
		err = unix.Statx(unix.AT_FDCWD, fd, unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &st)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return st.Ino, err == nil && unix.Mkdev(st.Dev_major, st.Dev_minor) == s.device, err
}

// mounts finds the mounts that a thread sees.
func (s *scan) mounts(t Task) error {
	all, err := mountsIn(t.Dir)
	if errors.Is(err, unix.EINVAL) {
		return nil // the thread is ending, and has left its mount namespace
	}
	for _, m := range all {
		s.found(Ref{m.inode, filepath.Join(t.Dir, "root", m.at)})
	}
	return err
}

// sharesFiles reports whether a thread shares the descriptors of its leading thread,
// as nearly all threads do. It is false if the kernel cannot compare them.
func sharesFiles(t Task) bool {
	const files = 2 // KCMP_FILES in the kernel's include/uapi/linux/kcmp.h
	differ, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(t.PID), uintptr(t.TID), files, 0, 0, 0)
	return errno == 0 && differ == 0
}

// Mounts returns the paths at which the calling thread sees a namespace mounted. It
// returns none if they cannot be read.
func Mounts(inode uint64) (paths []string) {
	all, _ := mountsIn("/proc/thread-self")
	for _, m := range all {
		if m.inode == inode {
			paths = append(paths, m.at)
		}
	}
	return paths
}

// mount is a mount of a network namespace.
type mount struct {
	inode uint64
	at    string
}

// mountsIn lists the mounts of network namespaces that a process sees.
//
//	512 24 0:4 net:[4026532231] /run/netns/host rw shared:253 - nsfs nsfs rw
func mountsIn(process string) (all []mount, err error) {
	data, err := os.ReadFile(process + "/mountinfo")
	if err != nil {
		return nil, err
	}
	for line := range bytes.Lines(data) {
		fields := strings.Fields(string(line))
		if len(fields) < 5 {
			continue
		}
		if inode, ok := inodeOf(fields[3]); ok {
			all = append(all, mount{inode, unescaped(fields[4])})
		}
	}
	return all, nil
}

// inodeOf returns the number in "net:[4026532231]", the text of links to a network
// namespace.
func inodeOf(link string) (inode uint64, ok bool) {
	number, ok := strings.CutPrefix(link, "net:[")
	if ok {
		number, ok = strings.CutSuffix(number, "]")
	}
	if ok {
		inode, err := strconv.ParseUint(number, 10, 64)
		return inode, err == nil
	}
	return 0, false
}

// unescaped undoes the octal escapes of proc_pid_mountinfo(5).
func unescaped(path string) string {
	if !strings.Contains(path, `\`) {
		return path // to make the Replacer takes longer than all else
	}
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(path)
}

// Task is a thread. It may have ended since it was listed.
type Task struct {
	PID, TID int
	// Dir is its directory, for example /proc/4711/task/4712.
	Dir string
}

// Leads reports whether the thread is its process's leading one.
func (t Task) Leads() bool { return t.PID == t.TID }

// NetNS returns the path of the thread's network namespace.
func (t Task) NetNS() string { return filepath.Join(t.Dir, "ns/net") }

// eachTask calls f with every thread below proc, a process's leading one before its
// others, until f returns false. It skips processes that end meanwhile, and
// those whose threads may not be listed; complete is false if there was one of
// the latter. It takes some microseconds for each process and each thread.
func eachTask(proc string, f func(Task) (more bool)) (complete bool, err error) {
	pids, err := Numbers(proc)
	if err != nil {
		return false, err
	}
	complete = true
	for _, pid := range pids {
		all, err := TasksOf(proc, pid)
		if err != nil && !Gone(err) {
			complete = false
		}
		for _, t := range all {
			if !f(t) {
				return complete, nil
			}
		}
	}
	return complete, nil
}

// TasksOf lists the threads of one process, the leading one first.
func TasksOf(proc string, pid int) ([]Task, error) {
	dir := filepath.Join(proc, strconv.Itoa(pid), "task")
	tids, err := Numbers(dir)
	if err != nil {
		return nil, err
	}
	all := make([]Task, 0, len(tids))
	for _, tid := range tids {
		all = append(all, Task{pid, tid, filepath.Join(dir, strconv.Itoa(tid))})
	}
	if i := slices.IndexFunc(all, Task.Leads); i > 0 { // its number may be the higher one, because numbers are reused
		leading := all[i]
		copy(all[1:], all[:i])
		all[0] = leading
	}
	return all, nil
}

// Gone reports whether an error of reading about a process or a thread means
// that it has ended.
func Gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH)
}

// Numbers lists the processes below a proc, or the threads in the directory "task" of
// one, in order.
func Numbers(dir string) ([]int, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("list threads: %w", err)
	}
	names, err := d.Readdirnames(-1)
	if err = joined.Errors(err, d.Close()); err != nil {
		return nil, fmt.Errorf("list threads: %w", err)
	}
	var all []int
	for _, name := range names {
		if n, err := strconv.Atoi(name); err == nil {
			all = append(all, n)
		}
	}
	slices.Sort(all)
	return all, nil
}

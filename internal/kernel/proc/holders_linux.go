package proc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/plainfile"
)

// Holder is a process that holds the lock on a byte of a lock file, by a
// description that it opened or inherited.
type Holder struct {
	PID int
	// Opened means that the descriptor is closed on exec, like the one with which
	// a runtime locks: the process did not inherit it.
	Opened bool

	locks  []extent // of the description
	dir    string   // of the process in /proc, or of one of its threads that still has descriptors
	fd     string
	offset int64
	file   os.FileInfo
	handle int // a pidfd, because process numbers are reused; -1 if the kernel has none
}

// extent is a range of bytes, both ends included.
type extent struct{ first, last int64 }

// Has reports whether the description also holds the lock on that byte.
func (h *Holder) Has(offset int64) bool {
	return slices.ContainsFunc(h.locks, func(l extent) bool { return l.first <= offset && offset <= l.last })
}

// Keys returns the other bytes of keys (see package lock) that the description
// has locked.
func (h *Holder) Keys() []int64 {
	var keys []int64
	for _, l := range h.locks {
		if l.first != h.offset && l.first%2 == 0 {
			keys = append(keys, l.first)
		}
	}
	return keys
}

// CloseHolders releases the handles of the processes.
func CloseHolders(holders []*Holder) {
	for _, h := range holders {
		if h.handle >= 0 {
			_ = unix.Close(h.handle)
		}
	}
}

// Holders returns the processes that have the byte locked, once for each
// descriptor, from the kernel's list of their open files. It examines every open
// file on the machine, except those of processes that it may not read, such as
// another user's. The caller must close the holders.
func Holders(lockFile string, offset int64) ([]*Holder, error) {
	file, err := os.Stat(lockFile)
	if err != nil {
		return nil, fmt.Errorf("find the processes that hold locks on %s: %w", lockFile, err)
	}
	if !ownProc() {
		return nil, fmt.Errorf("find the processes that hold locks on %s: /proc is of another PID namespace", lockFile)
	}
	pids, err := Numbers("/proc")
	if err != nil {
		return nil, fmt.Errorf("find the processes that hold locks on %s: %w", lockFile, err)
	}
	var holders []*Holder
	for _, pid := range pids {
		dir, fds := descriptors(pid)
		for _, fd := range fds {
			h := &Holder{PID: pid, dir: dir, fd: fd.Name(), offset: offset, file: file, handle: -1}
			if h.look() && h.open() {
				holders = append(holders, h)
			}
		}
	}
	return holders, nil
}

// descriptors lists the descriptors of a process, and none if it has ended or
// may not be read. If the leading thread has ended, it reads those of another
// thread.
func descriptors(pid int) (dir string, fds []os.DirEntry) {
	dir = fmt.Sprintf("/proc/%d", pid)
	if fds, err := os.ReadDir(dir + "/fdinfo"); err == nil && len(fds) > 0 {
		return dir, fds
	}
	threads, err := TasksOf("/proc", pid)
	if err != nil {
		return dir, nil
	}
	for _, t := range threads {
		if fds, err := os.ReadDir(t.Dir + "/fdinfo"); err == nil && len(fds) > 0 {
			return t.Dir, fds
		}
	}
	return dir, nil
}

// look reads the descriptor's locks, and reports whether the byte is locked.
func (h *Holder) look() bool {
	info, err := plainfile.Read(filepath.Join(h.dir, "fdinfo", h.fd))
	if err != nil {
		return false
	}
	h.Opened, h.locks = parseFDInfo(string(info))
	if !h.Has(h.offset) {
		return false
	}
	// Last, because looking at a file may wait for the server that has it.
	file, err := os.Stat(filepath.Join(h.dir, "fd", h.fd))
	return err == nil && os.SameFile(file, h.file)
}

// open opens a handle of the process, and verifies that it is still the examined
// process.
func (h *Holder) open() bool {
	handle, err := unix.PidfdOpen(h.PID, 0)
	if errors.Is(err, unix.ENOSYS) {
		return true // before Linux 5.3
	}
	if err != nil {
		return false
	}
	h.handle = handle
	if !h.look() {
		_ = unix.Close(handle)
		return false
	}
	return true
}

// Kill kills the process if it still has the byte locked, and reports whether it
// did.
func (h *Holder) Kill() (bool, error) {
	if h.PID == os.Getpid() || !h.look() || h.Opened {
		return false, nil
	}
	var err error
	if h.handle >= 0 {
		err = unix.PidfdSendSignal(h.handle, unix.SIGKILL, nil, 0)
	} else {
		err = unix.Kill(h.PID, unix.SIGKILL)
	}
	if errors.Is(err, unix.ESRCH) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("kill plugin process %d: %w", h.PID, err)
	}
	return true, nil
}

// parseFDInfo reads a descriptor's proc_pid_fdinfo(5): whether it is closed on
// exec, and the locks of its description.
//
//	pos:	0
//	flags:	02500002
//	mnt_id:	29
//	ino:	1234
//	lock:	1: OFDLCK  ADVISORY  WRITE -1 fe:00:1234 42 42
func parseFDInfo(info string) (closeOnExec bool, locks []extent) {
	closeOnExec = true // the safe assumption if there are no flags
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(line, ":")
		fields := strings.Fields(value)
		switch {
		case name == "flags" && len(fields) == 1:
			flags, err := strconv.ParseUint(fields[0], 8, 64)
			closeOnExec = err != nil || flags&unix.O_CLOEXEC != 0
		case name == "lock" && len(fields) == 8 && fields[1] == "OFDLCK":
			first, err := strconv.ParseInt(fields[6], 10, 64)
			last, lerr := strconv.ParseInt(fields[7], 10, 64)
			if fields[7] == "EOF" {
				last, lerr = 1<<63-1, nil
			}
			if err == nil && lerr == nil {
				locks = append(locks, extent{first, last})
			}
		}
	}
	return closeOnExec, locks
}

// Describe returns a process's number and, if readable, its name and whether it
// is stopped.
func Describe(pid int) string {
	stat, err := plainfile.Read(fmt.Sprintf("/proc/%d/stat", pid))
	first, last := strings.IndexByte(string(stat), '('), strings.LastIndexByte(string(stat), ')')
	if err != nil || first < 0 || last < first {
		return fmt.Sprintf("process %d", pid)
	}
	stopped := ""
	if state := strings.Fields(string(stat[last+1:])); len(state) > 0 && (state[0] == "T" || state[0] == "t") {
		stopped = ", stopped"
	}
	return fmt.Sprintf("process %d (%s%s)", pid, stat[first+1:last], stopped)
}

package hostlocal

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// index remembers the owner of each address of a directory. It is used only
// under the directory's lock, after refresh has updated it.
//
// Every ADD and DEL of any program creates or removes a file, which sets the
// directory's modification time to the present. That alone would not distinguish
// two changes within a tick of the kernel's clock (1 to 10 ms), not even on
// kernels with finer times: a tmpfs uses those of the file. So whenever the
// index is current, the directory gets a time in the past, which every change
// replaces.
//
// Rewriting a file in place does not change the directory. So a file's content
// is read again before anything is done because of it. If the index knows no
// file of a holder that should have one, all files are read again (reread).
type index struct {
	entries map[netip.Addr]entry
	holders map[string][]netip.Addr // by content of the file
	stamp   stamp                   // directory's stamp when the entries were current; zero if unknown
}

// entry is a file.
type entry struct {
	ino    uint64
	ctime  unix.Timespec
	holder string // its content, trimmed; empty for an empty file
}

// stamp identifies a state of a directory.
type stamp struct {
	dev, ino     uint64
	ctime, mtime unix.Timespec
}

func stampOf(dir string) (stamp, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return stamp{}, err
	}
	return stamp{dev: uint64(st.Dev), ino: st.Ino, ctime: st.Ctim, mtime: st.Mtim}, nil
}

// past is the distance of the time that a directory is given: more than a tick
// of the clock, and more than a correction of a running clock.
const past = time.Second

// mark gives the directory a time in the past, and returns its new stamp. It
// returns the zero stamp, which no directory has, if the time is not reliable.
func mark(dir string) stamp {
	if !keepsTime(dir) {
		return stamp{}
	}
	t := unix.NsecToTimespec(time.Now().Add(-past).UnixNano())
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, t}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, dir, times, 0); err != nil {
		return stamp{} // another user owns it
	}
	s, err := stampOf(dir)
	if err != nil || s.mtime != t { // the file system rounds
		return stamp{}
	}
	return s
}

// refresh updates the index. The first time it reads every file.
func (x *index) refresh(dir string) error {
	now, err := stampOf(dir)
	if err == nil && x.entries != nil && x.stamp == now {
		return nil
	}
	if err == nil {
		err = x.read(dir)
	}
	if err != nil {
		x.forget()
		return fmt.Errorf("look into %s: %w", dir, err)
	}
	x.stamp = mark(dir)
	return nil
}

// reread is refresh for files that may have been rewritten in place, which the
// directory's time does not show. It takes a system call for each file.
func (x *index) reread(dir string) error {
	x.stamp = stamp{}
	return x.refresh(dir)
}

// forget makes the next refresh read every file again.
func (x *index) forget() { *x = index{} }

// known reports whether the index has entries worth a refresh.
func (x *index) known() bool { return x.entries != nil }

// read makes the entries anew from the directory. It reads a file if its name,
// inode number or time is new: file systems reuse inode numbers.
func (x *index) read(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close() // it was only read
	files, err := d.ReadDir(-1)
	if err != nil {
		return err
	}
	fresh := index{entries: make(map[netip.Addr]entry), holders: make(map[string][]netip.Addr)}
	for _, f := range files {
		name := f.Name()
		addr, err := netip.ParseAddr(name)
		if err != nil || addr.String() != name || !f.Type().IsRegular() {
			continue // lock, last_reserved_ip.0, or a foreign file
		}
		e, old := entryOf(dir+"/"+name), x.entries[addr]
		if e.holder = old.holder; e == old && e.ino != 0 {
			fresh.put(addr, e)
			continue
		}
		content, err := readFile(dir + "/" + name)
		if errors.Is(err, unix.ENOENT) {
			continue // removed by a program that ignores the lock
		}
		if err != nil {
			return pathError("read", name, err)
		}
		e.holder = strings.TrimSpace(content)
		fresh.put(addr, e)
	}
	*x = fresh
	return nil
}

func (x *index) put(addr netip.Addr, e entry) {
	if x.entries == nil {
		return
	}
	x.remove(addr)
	x.entries[addr] = e
	x.holders[e.holder] = append(x.holders[e.holder], addr)
}

func (x *index) remove(addr netip.Addr) {
	e, ok := x.entries[addr]
	if !ok {
		return
	}
	delete(x.entries, addr)
	var rest []netip.Addr
	for _, other := range x.holders[e.holder] {
		if other != addr {
			rest = append(rest, other)
		}
	}
	if x.holders[e.holder] = rest; rest == nil {
		delete(x.holders, e.holder)
	}
}

// heldBy returns the addresses of a holder, and of the container without an
// interface name.
func (x *index) heldBy(id, holder string) []netip.Addr {
	all := slices.Clone(x.holders[strings.TrimSpace(holder)])
	if old := strings.TrimSpace(id); old != "" {
		all = append(all, x.holders[old]...)
	}
	return all
}

// hasFree reports whether an address of the set has no file.
func (x *index) hasFree(set rangeSet) bool {
	for addr := range set.after(netip.Addr{}) {
		if _, taken := x.entries[addr]; !taken {
			return true
		}
	}
	return false
}

// entryOf returns the identity of a file's present content, or the zero entry, which no
// file has, if it is unknown.
func entryOf(path string) entry {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return entry{}
	}
	return entry{ino: st.Ino, ctime: st.Ctim}
}

// keepsTime reports whether the directory's file system takes its times from
// this kernel at once. Those of a network file system come from a server, and
// are cached.
func keepsTime(dir string) bool {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return false
	}
	switch int64(st.Type) {
	case unix.TMPFS_MAGIC, unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC:
		return true
	}
	return false
}

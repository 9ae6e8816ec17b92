package hostlocal

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
)

// index is what is remembered of a directory: which address is whose. It is
// only ever used under the directory's lock, after refresh has made sure that
// it is still right.
//
// Every ADD and DEL, whoever's, creates or removes a file, and that changes the
// directory's times. Equal times mean an unchanged directory, with one
// exception: before Linux 6.13, two changes within one tick of the kernel's
// clock (1 to 10 ms) leave the same time. Where that may be, the names and inode
// numbers are compared, which costs a tenth of a microsecond for each.
type index struct {
	entries map[netip.Addr]entry
	holders map[string][]netip.Addr // by content
	stamp   stamp
	precise bool // two changes never have the same time here
}

// entry is a file.
type entry struct {
	ino    uint64
	ctime  unix.Timespec
	holder string // its content, trimmed; empty if it says nothing
}

// stamp is when a directory changed last.
type stamp struct {
	dev, ino     uint64
	ctime, mtime unix.Timespec
	local        bool // the times are the kernel's own, not a server's
	settled      bool // a later change would have had a later time
}

func stampOf(dir int) (stamp, error) {
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return stamp{}, err
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now); err != nil {
		return stamp{}, err
	}
	return stamp{
		dev: uint64(st.Dev), ino: st.Ino, ctime: st.Ctim, mtime: st.Mtim,
		settled: before(st.Ctim, now),
	}, nil
}

func before(a, b unix.Timespec) bool { return a.Nano() < b.Nano() }

// same tells whether nothing can have changed from one stamp to the other.
func (s stamp) same(later stamp) bool {
	return s.dev == later.dev && s.ino == later.ino && s.ctime == later.ctime && s.mtime == later.mtime
}

// refresh makes the index right. The first time it reads every file.
func (x *index) refresh(dir int) error {
	now, err := stampOf(dir)
	if err != nil {
		return err
	}
	unchanged := x.entries != nil && x.stamp.local && x.stamp.same(now)
	if unchanged && (x.precise || x.stamp.settled) {
		return nil
	}
	if x.entries == nil || x.stamp.dev != now.dev || x.stamp.ino != now.ino {
		*x = index{
			entries: make(map[netip.Addr]entry), holders: make(map[string][]netip.Addr),
			precise: timesArePrecise(dir),
		}
	}
	if err := x.read(dir, !unchanged); err != nil {
		x.forget()
		return err
	}
	x.restamp(dir)
	return nil
}

// forget makes the next refresh read every file again.
func (x *index) forget() { *x = index{} }

// known tells whether there is anything worth a refresh.
func (x *index) known() bool { return x.entries != nil }

// restamp takes the directory as it is now for what the index describes.
func (x *index) restamp(dir int) {
	s, err := stampOf(dir)
	if err != nil {
		s = stamp{} // equal to none
	}
	s.local = err == nil && keepsTime(dir)
	x.stamp = s
}

// read brings the entries up to date with the directory. A file is read if it
// is new; with changed, which says that somebody else was at work, a file that
// has the name and inode number of an old one is looked at too, as file systems
// use the numbers again.
func (x *index) read(dir int, changed bool) error {
	gone := make(map[netip.Addr]bool, len(x.entries))
	for addr := range x.entries {
		gone[addr] = true
	}
	err := list(dir, func(ino uint64, name string) error {
		addr, err := netip.ParseAddr(name)
		if err != nil || addr.String() != name {
			return nil // lock, last_reserved_ip.0, or nothing of host-local's
		}
		old, ok := x.entries[addr]
		if ok && old.ino == ino {
			if current := !changed || ctimeOf(dir, name) == old.ctime; current {
				delete(gone, addr)
				return nil
			}
		}
		content, err := readFile(dir, name)
		if errors.Is(err, unix.ENOENT) {
			return nil // removed by somebody who does not care for the lock
		}
		if err != nil {
			return pathError("read", name, err)
		}
		delete(gone, addr)
		x.put(addr, entry{ino: ino, ctime: ctimeOf(dir, name), holder: strings.TrimSpace(content)})
		return nil
	})
	for addr := range gone {
		x.remove(addr)
	}
	return err
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

// ctimeOf is when a file changed last; the zero time if that is not known,
// which is that of no file.
func ctimeOf(dir int, name string) unix.Timespec {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return unix.Timespec{}
	}
	return st.Ctim
}

// keepsTime tells whether the directory is in a file system whose times come
// from this kernel, at once. Over a network they are a server's, and cached.
func keepsTime(dir int) bool {
	var st unix.Statfs_t
	if err := unix.Fstatfs(dir, &st); err != nil {
		return false
	}
	switch int64(st.Type) {
	case unix.TMPFS_MAGIC, unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC:
		return true
	}
	return false
}

// timesArePrecise finds out whether a file's time, once somebody has asked for
// it, differs from that of any later change (Linux 6.13, "multigrain
// timestamps"). Two changes of a time that come within a tick show it: the
// second is then later than the clock that ticks.
func timesArePrecise(dir int) bool {
	const attempts = 3 // one is in vain if the clock ticks in between
	for range attempts {
		var first, second, tick unix.Timespec
		ok := touch(dir, &first) && touch(dir, &second) &&
			unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &tick) == nil
		if !ok {
			return false
		}
		if before(first, second) && before(tick, second) {
			return true
		}
	}
	return false
}

// touch changes the directory's times, and returns what they are then.
func touch(dir int, ctime *unix.Timespec) bool {
	now := []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_NOW}}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, descriptorPath(dir), now, 0); err != nil {
		return false
	}
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return false
	}
	*ctime = st.Ctim
	return true
}

// list calls f for each regular file in a directory. The offsets are those of
// struct linux_dirent64, getdents64(2).
func list(dir int, f func(ino uint64, name string) error) error {
	const inode, length, kind, text = 0, 16, 18, 19
	if _, err := unix.Seek(dir, 0, unix.SEEK_SET); err != nil {
		return err
	}
	buf := make([]byte, 64<<10)
	for {
		n, err := retry(func() (int, error) { return unix.Getdents(dir, buf) })
		if err != nil || n == 0 {
			return err
		}
		for rest := buf[:n]; len(rest) > text; {
			record := rest[:binary.NativeEndian.Uint16(rest[length:])]
			rest = rest[len(record):]
			if t := record[kind]; t != unix.DT_REG && t != unix.DT_UNKNOWN {
				continue
			}
			name, _, _ := strings.Cut(string(record[text:]), "\x00")
			if err := f(binary.NativeEndian.Uint64(record[inode:]), name); err != nil {
				return err
			}
		}
	}
}

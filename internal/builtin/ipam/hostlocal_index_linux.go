package ipam

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

// index remembers the holder of each address of a directory. It is used only
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
	holders map[netip.Addr]string // content of the files, trimmed; nil if it is unknown
	stamp   stamp                 // directory's stamp when the holders were current; zero if unknown
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

// refresh updates the index. If the directory has changed, it reads every file.
func (x *index) refresh(dir string) error {
	now, err := stampOf(dir)
	if err == nil && x.known() && x.stamp == now {
		return nil
	}
	*x = index{}
	if err == nil {
		x.holders, err = readHolders(dir)
	}
	if err != nil {
		return fmt.Errorf("look into %s: %w", dir, err)
	}
	x.stamp = mark(dir)
	return nil
}

// reread is refresh for files that may have been rewritten in place, which the
// directory's time does not show.
func (x *index) reread(dir string) error {
	x.stamp = stamp{}
	return x.refresh(dir)
}

// known reports whether the index has something that is worth a refresh.
func (x *index) known() bool { return x.holders != nil }

// readHolders reads the address files of a directory.
func readHolders(dir string) (map[netip.Addr]string, error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	holders := make(map[netip.Addr]string)
	for _, f := range files {
		name := f.Name()
		addr, err := netip.ParseAddr(name)
		if err != nil || addr.String() != name || !f.Type().IsRegular() {
			continue // lock, last_reserved_ip.0, or a foreign file
		}
		content, err := readFile(dir + "/" + name)
		if errors.Is(err, unix.ENOENT) {
			continue // removed by a program that ignores the lock
		}
		if err != nil {
			return nil, pathError("read", name, err)
		}
		holders[addr] = strings.TrimSpace(content)
	}
	return holders, nil
}

// of returns the addresses whose file has that content, trimmed. An empty file belongs to
// nobody.
func (x *index) of(content string) (all []netip.Addr) {
	for addr, has := range x.holders {
		if has == content && content != "" {
			all = append(all, addr)
		}
	}
	return slices.SortedFunc(slices.Values(all), netip.Addr.Compare)
}

// hasFree reports whether an address of the set has no file.
func (x *index) hasFree(set rangeSet) bool {
	for addr := range set.after(netip.Addr{}) {
		if _, taken := x.holders[addr]; !taken {
			return true
		}
	}
	return false
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

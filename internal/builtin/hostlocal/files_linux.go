package hostlocal

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A file of host-local has a few hundred bytes at most; a longer one is foreign.
const maxContent = 4096

// unfinished is the name of a reservation being written, on file systems that do
// not support unnamed files. The reference plugin ignores it, except that it
// removes the file with the container's others.
const unfinished = ".embedcni-unfinished"

// lineBreak separates the container ID and the interface name in an address
// file.
const lineBreak = "\r\n"

// holderOf returns the content of an attachment's address files.
func holderOf(id, ifName string) string {
	return strings.TrimSpace(id) + lineBreak + ifName
}

// reserve creates the address file, and reports whether it did: it does not if
// the file exists. Whenever the process ends, the file exists with its content
// or not at all; an empty file would hold the address for ever.
func (h *held) reserve(addr netip.Addr, holder string) (bool, error) {
	name := addr.String()
	if h.claim != nil {
		h.claim(addr)
	}
	err := h.publish(name, holder)
	if errors.Is(err, unix.EEXIST) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reserve %s in %s: %w", name, h.path, err)
	}
	h.changed = true
	e := entry{holder: strings.TrimSpace(holder)}
	var st unix.Stat_t
	if unix.Fstatat(h.dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
		e.ino, e.ctime = st.Ino, st.Ctim // without them the next refresh reads the file again
	}
	h.memo.put(addr, e)
	return true, nil
}

// publish creates a file with this content in one step.
func (h *held) publish(name, content string) error {
	if f := h.prepared.Take(); f != nil {
		defer f.Close() // written
		// It may be on another mount than h.dir: it was opened by path, in the mount
		// namespace of the process rather than the caller's.
		if err := h.publishAs(int(f.Fd()), name, content); err == nil || errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	fd, err := retry(func() (int, error) {
		return unix.Openat(h.dir, ".", unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	})
	if err != nil {
		return h.publishByLink(name, content)
	}
	defer unix.Close(fd)
	return h.publishAs(fd, name, content)
}

// publishAs is publish of an open file without a name.
func (h *held) publishAs(fd int, name, content string) error {
	if err := write(fd, content); err != nil {
		return err
	}
	err := unix.Linkat(unix.AT_FDCWD, descriptorPath(fd), h.dir, name, unix.AT_SYMLINK_FOLLOW)
	if errors.Is(err, unix.ENOENT) { // there is no /proc
		return h.publishByLink(name, content)
	}
	return err
}

// publishByLink is publish by way of a temporary name.
func (h *held) publishByLink(name, content string) (err error) {
	fd, err := retry(func() (int, error) {
		return unix.Openat(h.dir, unfinished, unix.O_CREAT|unix.O_TRUNC|unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	})
	if err != nil {
		return err
	}
	defer func() {
		h.changed = true
		err = errors.Join(err, unix.Close(fd), unix.Unlinkat(h.dir, unfinished, 0))
	}()
	if err := write(fd, content); err != nil {
		return err
	}
	return unix.Linkat(h.dir, unfinished, h.dir, name, 0)
}

// releaseIf removes the address file if it belongs to the holder, and reports
// whether it did.
func (h *held) releaseIf(addr netip.Addr, holder string) (bool, error) {
	name := addr.String()
	content, err := readFile(h.dir, name)
	if errors.Is(err, unix.ENOENT) || err == nil && strings.TrimSpace(content) != holder {
		return false, nil
	}
	if err == nil {
		err = unix.Unlinkat(h.dir, name, 0)
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return false, fmt.Errorf("release %s in %s: %w", name, h.path, err)
	}
	h.changed = true
	h.memo.remove(addr)
	return true, nil
}

// lastReserved returns the address of a range set that was assigned last. A
// missing or invalid file only loses the order.
func (h *held) lastReserved(set int) netip.Addr {
	text, err := readFile(h.dir, lastReservedName(set))
	if err != nil {
		return netip.Addr{}
	}
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}
	}
	return addr.Unmap()
}

func (h *held) setLastReserved(set int, addr netip.Addr) (err error) {
	name := lastReservedName(set)
	fd, err := retry(func() (int, error) {
		return unix.Openat(h.dir, name, unix.O_CREAT|unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	})
	if err != nil {
		return pathError("open", h.path+"/"+name, err)
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	text := addr.String()
	if err := write(fd, text); err != nil {
		return pathError("write", h.path+"/"+name, err)
	}
	return unix.Ftruncate(fd, int64(len(text)))
}

func lastReservedName(set int) string { return "last_reserved_ip." + strconv.Itoa(set) }

func write(fd int, content string) error {
	n, err := retry(func() (int, error) { return unix.Write(fd, []byte(content)) })
	if err == nil && n < len(content) {
		err = unix.ENOSPC
	}
	return err
}

// readFile returns the beginning of a file. It never waits, even if the path
// leads to no regular file.
func readFile(dir int, name string) (string, error) {
	fd, err := retry(func() (int, error) {
		return unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	})
	if err != nil {
		return "", err
	}
	var buf [maxContent]byte
	n, err := retry(func() (int, error) { return unix.Read(fd, buf[:]) })
	if err := errors.Join(err, unix.Close(fd)); err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// descriptorPath returns the path of an open file, for system calls that need
// one.
func descriptorPath(fd int) string { return "/proc/thread-self/fd/" + strconv.Itoa(fd) }

func pathError(op, path string, err error) error { return &fs.PathError{Op: op, Path: path, Err: err} }

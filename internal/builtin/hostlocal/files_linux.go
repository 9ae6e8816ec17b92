package hostlocal

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/plainfile"
)

// A file of host-local has a few hundred bytes at most; a longer one is foreign.
const maxContent = 4096

// unfinished is the name of a reservation being written, on file systems that do
// not support unnamed files. The reference plugin ignores it, except that it
// removes the file with the container's others.
const unfinished = ".embedcni-unfinished"

// holderOf returns the content of an attachment's address files.
func holderOf(id, ifName string) string {
	return strings.TrimSpace(id) + LineBreak + ifName
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
	e := entryOf(h.file(name)) // if it is unknown, the next refresh reads the file again
	e.holder = strings.TrimSpace(holder)
	h.memo.put(addr, e)
	return true, nil
}

func (h *held) file(name string) string { return h.path + "/" + name }

// publish creates a file with this content in one step.
func (h *held) publish(name, content string) error {
	// The prepared file may be on another mount: it was opened in the mount namespace of
	// the process rather than the caller's. Or there was no directory yet.
	for range 2 {
		if h.prepared == nil {
			h.prepared = plainfile.Prepare(h.path, 0o600)
		}
		f, err := h.prepared.Publish(h.file(name), []byte(content))
		h.prepared = nil
		if err == nil {
			return f.Close()
		}
		if errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	return h.publishByLink(name, content)
}

// publishByLink is publish by way of a temporary name.
func (h *held) publishByLink(name, content string) (err error) {
	h.changed = true
	temporary := h.file(unfinished)
	defer func() {
		if gone := os.Remove(temporary); !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}()
	if err := plainfile.Write(temporary, []byte(content), 0o600); err != nil {
		return err
	}
	return unix.Link(temporary, h.file(name))
}

// releaseIf removes the address file if it belongs to the holder, and reports
// whether it did.
func (h *held) releaseIf(addr netip.Addr, holder string) (bool, error) {
	name := addr.String()
	content, err := readFile(h.file(name))
	if errors.Is(err, unix.ENOENT) || err == nil && strings.TrimSpace(content) != holder {
		return false, nil
	}
	if err == nil {
		err = unix.Unlink(h.file(name))
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
	text, err := readFile(h.file(lastReservedName(set)))
	if err != nil {
		return netip.Addr{}
	}
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}
	}
	return addr.Unmap()
}

func (h *held) setLastReserved(set int, addr netip.Addr) error {
	f, err := plainfile.Open(h.file(lastReservedName(set)), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	text := addr.String()
	_, err = f.WriteString(text)
	return errors.Join(err, f.Truncate(int64(len(text))), f.Close())
}

func lastReservedName(set int) string { return "last_reserved_ip." + strconv.Itoa(set) }

// readFile returns the beginning of a file. It never waits, even if the path
// leads to no regular file.
func readFile(path string) (string, error) {
	fd, err := retry(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0) })
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

func pathError(op, path string, err error) error { return &fs.PathError{Op: op, Path: path, Err: err} }

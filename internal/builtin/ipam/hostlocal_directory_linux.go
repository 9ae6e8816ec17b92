package ipam

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/plainfile"
)

// directory is the directory of a network, with an index of its files.
type directory struct {
	path string
	turn chan struct{} // holds one token while a goroutine has, or asks for, the lock
	memo index         // may be used during the turn
}

func newDirectory(path string) *directory {
	return &directory{path: path, turn: make(chan struct{}, 1)}
}

// held is a directory that this process has locked against all others.
type held struct {
	*directory
	lock     *os.File
	changed  bool
	prepared *plainfile.Unnamed // for the first reservation; may be nil
}

// acquire locks the directory. With create it creates it first; otherwise it
// fails with [fs.ErrNotExist] if the directory is missing.
func (d *directory) acquire(ctx context.Context, create bool) (*held, error) {
	select {
	case d.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the lock of %s: %w", d.path, context.Cause(ctx))
	}
	h, err := d.open(ctx, create)
	if err != nil {
		<-d.turn
		return nil, err
	}
	if d.memo.known() { // before a change of this process hides those of others
		if err := d.memo.refresh(d.path); err != nil {
			return nil, joined.Errors(err, h.release())
		}
	}
	return h, nil
}

func (d *directory) open(ctx context.Context, create bool) (*held, error) {
	for {
		if create {
			if err := os.MkdirAll(d.path, 0o755); err != nil {
				return nil, fmt.Errorf("directory of the addresses: %w", err)
			}
		}
		lock, err := Lock(ctx, d.path)
		if create && errors.Is(err, fs.ErrNotExist) {
			continue // it was removed after MkdirAll
		}
		if err != nil {
			return nil, err
		}
		return &held{directory: d, lock: lock}, nil
	}
}

// release unlocks the directory, after it has updated the index with its own
// changes.
func (h *held) release() error {
	if h.changed && h.memo.known() {
		h.memo.stamp = mark(h.path)
	}
	err := h.lock.Close() // closing unlocks: nobody else has the description
	<-h.turn
	return err
}

// retry repeats a system call that a signal interrupts.
func retry[T any](call func() (T, error)) (T, error) {
	for {
		if v, err := call(); !errors.Is(err, unix.EINTR) {
			return v, err
		}
	}
}

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

// holders returns the contents, trimmed, by which an address file is an attachment's: its
// own, and the container's ID alone, as a version without interface names wrote it.
func holders(id, ifName string) (own, old string) {
	return strings.TrimSpace(holderOf(id, ifName)), strings.TrimSpace(id)
}

// reserve creates the address file, and reports whether it did: it does not if
// the file exists. Whenever the process ends, the file exists with its content
// or not at all; an empty file would hold the address for ever.
func (h *held) reserve(addr netip.Addr, holder string) (bool, error) {
	name := addr.String()
	err := h.publish(name, holder)
	if errors.Is(err, unix.EEXIST) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reserve %s in %s: %w", name, h.path, err)
	}
	h.changed = true
	if h.memo.known() {
		h.memo.holders[addr] = strings.TrimSpace(holder)
	}
	return true, nil
}

func (h *held) file(name string) string { return h.path + "/" + name }

// publish creates a file with this content in one step.
func (h *held) publish(name, content string) error {
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
	// There was no directory yet, or the prepared file is on another mount: it was opened in
	// the mount namespace of the process rather than the caller's.
	return h.publishByLink(name, content)
}

// publishByLink is publish by way of a temporary name.
func (h *held) publishByLink(name, content string) (err error) {
	h.changed = true
	temporary := h.file(unfinished)
	defer func() {
		if gone := os.Remove(temporary); !errors.Is(gone, fs.ErrNotExist) {
			err = joined.Errors(err, gone)
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
	delete(h.memo.holders, addr)
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
	return joined.Errors(err, f.Truncate(int64(len(text))), f.Close())
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
	if err := joined.Errors(err, unix.Close(fd)); err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

func pathError(op, path string, err error) error { return &fs.PathError{Op: op, Path: path, Err: err} }

// allocate reserves an address of each range set, or none.
func (h *held) allocate(c *hostLocalConfig, id, ifName string) (_ []*types100.IPConfig, err error) {
	var ips []*types100.IPConfig
	var mine []netip.Addr
	defer func() {
		if err != nil {
			own, _ := holders(id, ifName)
			_, undone := h.releaseAll(mine, own)
			err = joined.Errors(err, undone)
		}
	}()
	wanted := slices.Clone(c.requested)
	for i, set := range c.sets {
		var addr netip.Addr
		at := slices.IndexFunc(wanted, func(a netip.Addr) bool { _, ok := set.find(a); return ok })
		if at >= 0 {
			addr = wanted[at]
			wanted = slices.Delete(wanted, at, at+1)
			err = h.reserveRequested(set, addr, holderOf(id, ifName))
		} else {
			addr, err = h.reserveNext(set, i, mine, id, ifName)
		}
		if err != nil {
			return nil, fmt.Errorf("range set %d: %w", i, err)
		}
		mine = append(mine, addr)
		if err := h.setLastReserved(i, addr); err != nil {
			return nil, err
		}
		r, _ := set.find(addr)
		ips = append(ips, r.ipConfig(addr))
	}
	if len(wanted) > 0 {
		return nil, fmt.Errorf("requested addresses are in no range set, or more than one is in the same: %v", wanted)
	}
	return ips, nil
}

func (h *held) reserveRequested(set rangeSet, addr netip.Addr, holder string) error {
	if r, _ := set.find(addr); r.gateway == addr {
		return fmt.Errorf("the requested address %s is the gateway's", addr)
	}
	ok, err := h.reserve(addr, holder)
	if err == nil && !ok {
		return fmt.Errorf("the requested address %s is in use, see the file of that name in %s", addr, h.path)
	}
	return err
}

// reserveNext reserves the next free address of a set. If the attachment already
// has an address in the set, except from this call, it was not deleted, and the
// specification forbids a second ADD.
func (h *held) reserveNext(set rangeSet, i int, mine []netip.Addr, id, ifName string) (netip.Addr, error) {
	own, old := holders(id, ifName)
	for _, addr := range append(h.memo.of(own), h.memo.of(old)...) {
		if _, ok := set.find(addr); !ok || slices.Contains(mine, addr) {
			continue
		}
		// The index may have missed that the file was removed or rewritten.
		content, err := readFile(h.file(addr.String()))
		if content = strings.TrimSpace(content); err == nil && (content == own || content == old) {
			return netip.Addr{}, fmt.Errorf("container %q has the address %s already, and no second ADD is allowed: "+
				"run DEL first, which removes the file %s/%s", id, addr, h.path, addr)
		}
	}
	last := h.lastReserved(i)
	for _, certain := range []bool{false, true} {
		if certain { // addresses that seem to be taken may be stale in the index too
			if err := h.memo.reread(h.path); err != nil {
				return netip.Addr{}, err
			}
		}
		for addr := range set.after(last) {
			if _, taken := h.memo.holders[addr]; taken {
				continue
			}
			if ok, err := h.reserve(addr, holderOf(id, ifName)); err != nil || ok {
				return addr, err
			}
		}
	}
	return netip.Addr{}, fmt.Errorf("no address of the range set %s is free: each has a file in %s", set, h.path)
}

// releaseAll removes those of the address files that have the content, trimmed, and
// returns their number.
func (h *held) releaseAll(addrs []netip.Addr, holder string) (released int, err error) {
	for _, addr := range addrs {
		ok, failed := h.releaseIf(addr, holder)
		if ok {
			released++
		}
		err = joined.Errors(err, failed)
	}
	return released, err
}

// releaseHeld removes all address files of the attachment that the index knows. If
// there never were any, it removes those that contain only the container's ID.
func (h *held) releaseHeld(before int, id, ifName string) error {
	own, old := holders(id, ifName)
	released, err := h.releaseAll(h.memo.of(own), own)
	if before+released == 0 && err == nil {
		_, err = h.releaseAll(h.memo.of(old), old)
	}
	return err
}

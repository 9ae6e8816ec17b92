package ipam

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"
	"golang.org/x/sys/unix"

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
	released int                // number of addresses
	mine     []netip.Addr       // reserved by this ADD
	failed   bool               // to reserve one, for another reason than that it is taken
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
			return nil, errors.Join(err, h.release())
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

// A held directory is the store of the reference plugin's allocator, which asks it for
// locks that it has.
var _ backend.Store = (*held)(nil)

func (*held) Lock() error   { return nil }
func (*held) Unlock() error { return nil }
func (*held) Close() error  { return nil }

// Reserve reserves an address, and notes that it is the range set's last. It reports
// whether it did: it does not if the index or a file says that somebody has it.
func (h *held) Reserve(id, ifName string, ip net.IP, set string) (bool, error) {
	addr, _ := netip.AddrFromSlice(ip) // as the allocator has made it canonical
	if h.memo.taken(addr) {
		return false, nil
	}
	ok, err := h.reserve(addr, holderOf(id, ifName))
	if ok {
		h.mine = append(h.mine, addr)
		err = h.setLastReserved(set, addr.String())
	}
	h.failed = h.failed || err != nil
	return ok, err
}

// LastReservedIP returns the address of a range set that was assigned last. A missing or
// invalid file only loses the order.
func (h *held) LastReservedIP(set string) (net.IP, error) {
	text, _ := readFile(h.file(lastReserved + set))
	return net.ParseIP(text), nil
}

// GetByID returns the addresses of an attachment. The index may have missed that a file
// was removed or rewritten.
func (h *held) GetByID(id, ifName string) (ips []net.IP) {
	own, old := holders(id, ifName)
	for _, addr := range append(h.memo.of(own), h.memo.of(old)...) {
		content, err := readFile(h.file(addr.String()))
		if content = strings.TrimSpace(content); err == nil && (content == own || content == old) {
			ips = append(ips, addr.AsSlice())
		}
	}
	return ips
}

// ReleaseByID removes all address files of the attachment that the index knows. If there
// never were any, it removes those that contain only the container's ID.
func (h *held) ReleaseByID(id, ifName string) error {
	own, old := holders(id, ifName)
	err := h.releaseAll(h.memo.of(own), own)
	if h.released == 0 && err == nil {
		err = h.releaseAll(h.memo.of(old), old)
	}
	return err
}

// allocate reserves an address of each range set, or none.
func (h *held) allocate(c *hostLocalConfig, id, ifName string) (ips []*types100.IPConfig, err error) {
	defer func() {
		if err != nil {
			own, _ := holders(id, ifName)
			err = errors.Join(err, h.releaseAll(h.mine, own))
		}
	}()
	wanted := slices.Clone(c.requested)
	for i, set := range c.sets {
		var addr net.IP
		if at := slices.IndexFunc(wanted, set.Contains); at >= 0 {
			addr = wanted[at]
			wanted = slices.Delete(wanted, at, at+1)
		}
		ip, err := h.get(&set, i, id, ifName, addr)
		if err != nil {
			return nil, fmt.Errorf("range set %d: %w", i, err)
		}
		ips = append(ips, ip)
	}
	if len(wanted) > 0 {
		return nil, fmt.Errorf("requested addresses are in no range set, or more than one is in the same: %v", wanted)
	}
	return ips, nil
}

// get reserves an address of a range set: the requested one, if there is one. If the
// allocator finds none, it asks again, because the index may be stale.
func (h *held) get(set *allocator.RangeSet, i int, id, ifName string, requested net.IP) (*types100.IPConfig, error) {
	from := allocator.NewIPAllocator(set, h, i)
	ip, err := from.Get(id, ifName, requested)
	if err == nil || h.failed {
		return ip, err
	}
	if err := h.memo.reread(h.path); err != nil {
		return nil, err
	}
	if ip, err = from.Get(id, ifName, requested); err != nil && !h.failed {
		err = fmt.Errorf("%w: an address in use has a file in %s, which the DEL of its container removes", err, h.path)
	}
	return ip, err
}

// hasFree reports whether an address of the set has no file.
func (h *held) hasFree(set *allocator.RangeSet) bool {
	all, err := allocator.NewIPAllocator(set, h, 0).GetIter()
	for err == nil {
		ip, _ := all.Next()
		if ip == nil {
			return false
		}
		if addr, _ := netip.AddrFromSlice(ip.IP); !h.memo.taken(addr) {
			return true
		}
	}
	return false
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
			err = errors.Join(err, gone)
		}
	}()
	if err := plainfile.Write(temporary, []byte(content), 0o600); err != nil {
		return err
	}
	return unix.Link(temporary, h.file(name))
}

// releaseAll removes those of the address files that have the content, trimmed.
func (h *held) releaseAll(addrs []netip.Addr, holder string) (err error) {
	for _, addr := range addrs {
		if failed := h.releaseIf(addr, holder); failed != nil {
			err = errors.Join(err, fmt.Errorf("release %s in %s: %w", addr, h.path, failed))
		}
	}
	return err
}

// releaseIf removes the address file if it belongs to the holder.
func (h *held) releaseIf(addr netip.Addr, holder string) error {
	file := h.file(addr.String())
	content, err := readFile(file)
	if err == nil && strings.TrimSpace(content) != holder {
		return nil
	}
	if err == nil {
		err = unix.Unlink(file)
	}
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err == nil {
		h.changed = true
		h.released++
		delete(h.memo.holders, addr)
	}
	return err
}

// lastReserved begins the names of the files with the address of a range set that was
// assigned last.
const lastReserved = "last_reserved_ip."

func (h *held) setLastReserved(set, addr string) error {
	f, err := plainfile.Open(h.file(lastReserved+set), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(addr)
	return errors.Join(err, f.Truncate(int64(len(addr))), f.Close())
}

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

package leftovers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/netfilter"
	"github.com/embedcni/cni/internal/kernel/plainfile"
)

// Reservation is a file of host-local: its name is the address, and its content
// is the container ID and the interface name on two lines. An empty file names
// neither: host-local was killed between creating and writing it, a power cut
// lost the content, or an administrator excludes the address.
type Reservation struct {
	Dir                 string
	Addr                netip.Addr
	ContainerID, IfName string
	// Made is the time at which the file was made, or last written.
	Made time.Time

	changed       time.Time // last change of the file or its inode
	file, content string
	private       bool // with the mode of host-local's files
}

// madeBetween reports whether the file was made after the first time and not
// changed after the second. It is false for files of the same tick of the clock,
// whose order is unknown.
func (r Reservation) madeBetween(after, until time.Time) bool {
	return r.Made.After(after) && !r.Made.After(until) && !r.changed.After(until)
}

func (r Reservation) path() string { return filepath.Join(r.Dir, r.file) }

func (r Reservation) String() string { return "address " + r.file + " in " + r.Dir }

// holds compares the file's content with its owner as host-local does. Files of its earliest
// versions have no interface name.
func (r Reservation) holds(its netfilter.Owner) bool {
	content := strings.TrimSpace(r.content)
	return content == its.ContainerID+ipam.LineBreak+its.IfName || content == its.ContainerID
}

// longestReservation is more than host-local writes.
const longestReservation = 4096

// readReservation reads a file. A file that host-local cannot have made is no
// reservation.
func readReservation(dir, name string) (r Reservation, ok bool, err error) {
	addr, err := netip.ParseAddr(name)
	if err != nil {
		return r, false, nil
	}
	r = Reservation{Dir: dir, Addr: addr, file: name}
	info, err := os.Lstat(r.path())
	if err == nil && !info.Mode().IsRegular() && info.Mode()&fs.ModeSymlink == 0 {
		return r, false, nil
	}
	var data []byte
	if err == nil {
		data, err = plainfile.ReadUpTo(r.path(), longestReservation)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, plainfile.ErrTooLong), errors.Is(err, plainfile.ErrNotRegular):
		return r, false, nil
	case err != nil:
		return r, false, err
	}
	r.content = string(data)
	r.Made, r.changed, r.private = made(info)
	r.ContainerID, r.IfName, _ = strings.Cut(strings.TrimSpace(r.content), ipam.LineBreak)
	return r, true, nil
}

// reservations returns those of the named files of host-local that are wanted. Unreadable
// files become errors beside the result.
func reservations(dir string, names []string, wanted func(Reservation) bool) (found []Reservation, err error) {
	var errs []error
	for _, name := range names {
		r, ok, err := readReservation(dir, name)
		errs = append(errs, err)
		if ok && wanted(r) {
			found = append(found, r)
		}
	}
	return found, joined.Errors(errs...)
}

// filesIn returns the names of all reservations in host-local's directory of a network. A
// directory that does not exist has none.
func filesIn(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		if net.ParseIP(e.Name()) != nil { // not lock, nor last_reserved_ip.*
			names = append(names, e.Name())
		}
	}
	return names, err
}

// Remove deletes the file durably, under host-local's own lock, unless the file has
// changed since it was found: another container may have the address by now.
func (r Reservation) Remove(ctx context.Context) (err error) {
	lock, err := ipam.Lock(ctx, r.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("release %s: %w", r, err)
	}
	defer func() { err = joined.Errors(err, lock.Close()) }()
	now, ok, err := readReservation(r.Dir, r.file)
	if err == nil && (!ok || now.content != r.content || r.content == "" && now != r) {
		return nil
	}
	if err == nil {
		err = os.Remove(r.path())
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = plainfile.SyncDir(r.Dir)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("release %s: %w", r, err)
	}
	return nil
}

// reserved returns the target's reservations. To read all files takes longer the more
// containers the network has, so not every DEL does it.
func (t *Target) reserved() (all []Reservation, err error) {
	var known []string
	for _, addr := range t.Footprint.Addresses {
		known = append(known, addr.String())
	}
	var errs []error
	for _, dir := range t.Footprint.IPAMDirs {
		names := known
		if t.How.Thorough {
			if names, err = filesIn(dir); err != nil {
				errs = append(errs, fmt.Errorf("addresses of container %s: %w", t.Footprint.ContainerID, err))
				continue
			}
		}
		found, err := reservations(dir, names, func(r Reservation) bool {
			if r.content == "" {
				return t.How.Thorough && r.private && t.How.Emptied != nil && t.How.Emptied(r)
			}
			return r.holds(t.Footprint.Owner) && (t.How.Only == nil || t.How.Only(r.Addr))
		})
		all, errs = append(all, found...), append(errs, err)
	}
	return all, joined.Errors(errs...)
}

// Held returns the addresses that are reserved for the target, in files that name it.
func (t Target) Held() (held []netip.Addr, err error) {
	t.How.Thorough, t.How.Emptied = true, nil
	found, err := t.reserved()
	for _, r := range found {
		held = append(held, r.Addr)
	}
	return held, err
}

// taken returns those of the addresses that are reserved for another attachment.
func (f *Footprint) taken() (taken []netip.Addr, err error) {
	var errs []error
	for _, dir := range f.IPAMDirs {
		for _, addr := range f.Addresses {
			r, ok, err := readReservation(dir, addr.String())
			if err != nil {
				errs = append(errs, fmt.Errorf("find the owner of the reserved address %s: %w", addr, err))
			}
			if ok && r.content != "" && !r.holds(f.Owner) {
				taken = append(taken, addr)
			}
		}
	}
	return taken, joined.Errors(errs...)
}

// Foreign returns the reservations in host-local's directory of a network. Those that
// host-local did not write, or not to the end, name no attachment: they are foreign.
func Foreign(dir string) (foreign []string, others []Reservation, err error) {
	names, err := filesIn(dir)
	if err != nil {
		return nil, nil, err
	}
	var errs []error
	for _, name := range names {
		r, ok, err := readReservation(dir, name)
		errs = append(errs, err)
		if ok && r.IfName != "" && r.content == r.ContainerID+ipam.LineBreak+r.IfName {
			others = append(others, r)
		} else if err == nil {
			foreign = append(foreign, filepath.Join(dir, name))
		}
	}
	return foreign, others, joined.Errors(errs...)
}

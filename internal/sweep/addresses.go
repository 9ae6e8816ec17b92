package sweep

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

	"github.com/embedcni/cni/internal/plainfile"
)

// Reservation is a file of host-local: its name is the address, its content is
// the container ID and the interface name on two lines. One that is empty says
// neither: host-local was killed between making the file and writing it, the
// content was lost with the power, or an administrator keeps the address from
// being given out.
type Reservation struct {
	Dir                 string
	Addr                netip.Addr
	ContainerID, IfName string
	// Made is when the file was made, or last written to.
	Made time.Time

	changed       time.Time // when anything of it was changed
	file, content string
	private       bool // as host-local makes its files
}

// MadeBetween reports whether the file was made after one time and not changed
// after another. Of files of the same tick of the clock it is not known which was
// first.
func (r Reservation) MadeBetween(after, until time.Time) bool {
	return r.Made.After(after) && !r.Made.After(until) && !r.changed.After(until)
}

// Path is that of the file.
func (r Reservation) Path() string { return filepath.Join(r.Dir, r.file) }

func (r Reservation) String() string { return "address " + r.file + " in " + r.Dir }

// longestReservation is more than host-local writes.
const longestReservation = 4096

// lineBreak separates the container ID and the interface name.
const lineBreak = "\r\n"

// readReservation reads a file. A file that host-local cannot have made is nobody's
// reservation.
func readReservation(dir, name string) (r Reservation, ok bool, err error) {
	addr, err := netip.ParseAddr(name)
	if err != nil {
		return r, false, nil
	}
	r = Reservation{Dir: dir, Addr: addr, file: name}
	info, err := os.Lstat(r.Path())
	if err == nil && !info.Mode().IsRegular() && info.Mode()&fs.ModeSymlink == 0 {
		return r, false, nil
	}
	var data []byte
	if err == nil {
		data, err = plainfile.ReadUpTo(r.Path(), longestReservation)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, plainfile.ErrTooLong), errors.Is(err, plainfile.ErrNotRegular):
		return r, false, nil
	case err != nil:
		return r, false, err
	}
	r.content = string(data)
	r.Made, r.changed, r.private = made(info)
	r.ContainerID, r.IfName, _ = strings.Cut(strings.TrimSpace(r.content), lineBreak)
	return r, true, nil
}

// Remove deletes the file under host-local's own lock, unless the file has changed
// since it was found: the address may be another container's by now.
func (r Reservation) Remove(context.Context) (err error) {
	unlock, err := lockDir(r.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("release %s: %w", r, err)
	}
	defer func() { err = errors.Join(err, unlock()) }()
	now, ok, err := readReservation(r.Dir, r.file)
	if err == nil && (!ok || now.content != r.content || r.content == "" && now != r) {
		return nil
	}
	if err == nil {
		err = os.Remove(r.Path())
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("release %s: %w", r, err)
	}
	return nil
}

// addresses finds the files of the container's interface in host-local's directories
// of the network.
func (s *search) addresses(context.Context) (items []Item, err error) {
	found, err := reservationsOf(s.Target)
	for _, r := range found {
		items = append(items, r)
	}
	return items, err
}

// reservationsOf returns the reservations of the target in all directories.
func reservationsOf(t Target) (all []Reservation, err error) {
	var errs []error
	for _, dir := range t.IPAMDirs {
		names, err := candidates(dir, t.How.Thorough, t.Addresses)
		if err != nil {
			errs = append(errs, fmt.Errorf("addresses of container %s: %w", t.ContainerID, err))
			continue
		}
		found, err := reservations(dir, names, func(r Reservation) bool {
			if r.content == "" {
				return t.How.Thorough && r.private && t.How.Emptied != nil && t.How.Emptied(r)
			}
			return holds(r.content, t.ContainerID, t.IfName) && (t.How.Only == nil || t.How.Only(r.Addr))
		})
		all, errs = append(all, found...), append(errs, err)
	}
	return all, errors.Join(errs...)
}

// reservations are those of the files that are wanted. One that cannot be read
// is an error beside the others.
func reservations(dir string, names []string, wanted func(Reservation) bool) (found []Reservation, err error) {
	var errs []error
	for _, name := range names {
		r, ok, err := readReservation(dir, name)
		errs = append(errs, err)
		if ok && wanted(r) {
			found = append(found, r)
		}
	}
	return found, errors.Join(errs...)
}

// Held returns the addresses that host-local holds for the attachment in the target's
// directories, regardless of the target's addresses.
func Held(t Target) (held []netip.Addr, err error) {
	t.How.Thorough, t.How.Emptied = true, nil
	found, err := reservationsOf(t)
	for _, r := range found {
		held = append(held, r.Addr)
	}
	return held, err
}

// Stale returns the files in host-local's directory of a network for which stale
// returns true. It is asked about each file that names an attachment, and each empty
// one that a program like host-local made. A directory that does not exist has none.
func Stale(dir string, stale func(Reservation) bool) ([]Item, error) {
	names, err := candidates(dir, true, nil)
	if err != nil {
		return nil, fmt.Errorf("stale addresses: %w", err)
	}
	found, err := reservations(dir, names, func(r Reservation) bool {
		return (r.IfName != "" || r.content == "" && r.private) && stale(r)
	})
	var items []Item
	for _, r := range found {
		items = append(items, r)
	}
	return items, err
}

// Foreign returns the reservations in host-local's directory of a network. Those that
// host-local did not write, or not to the end, name no attachment: they are foreign.
func Foreign(dir string) (foreign []string, others []Reservation, err error) {
	names, err := candidates(dir, true, nil)
	if err != nil {
		return nil, nil, err
	}
	var errs []error
	for _, name := range names {
		r, ok, err := readReservation(dir, name)
		errs = append(errs, err)
		if ok && r.IfName != "" && r.content == r.ContainerID+lineBreak+r.IfName {
			others = append(others, r)
		} else if err == nil {
			foreign = append(foreign, filepath.Join(dir, name))
		}
	}
	return foreign, others, errors.Join(errs...)
}

// SyncDir brings the names in a directory to the disk, and that others are gone.
// A directory that does not exist has none.
func SyncDir(dir string) error {
	d, err := plainfile.Open(dir, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// candidates are the files to look into: those of the addresses that are known,
// or all where there may be more. The cost of reading all grows with the containers of
// the network, so it is not for every DEL.
func candidates(dir string, thorough bool, addresses []netip.Addr) ([]string, error) {
	var names []string
	if !thorough {
		for _, addr := range addresses {
			names = append(names, addr.String())
		}
		return names, nil
	}
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

// holds compares a file's content as host-local does; files of its earliest
// versions have no interface name.
func holds(content, id, ifName string) bool {
	content = strings.TrimSpace(content)
	return content == id+lineBreak+ifName || content == id
}

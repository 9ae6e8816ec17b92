// Package ipamdir finds and releases reservations in the directories of host-local: a
// file for each address, which names the attachment that has it. Other programs and
// administrators may share a directory.
package ipamdir

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

// Release removes reservations, goes on after an error, and stops when ctx ends.
func Release(ctx context.Context, all []Reservation) error {
	var errs []error
	for _, r := range all {
		if err := ctx.Err(); err != nil {
			return errors.Join(append(errs, err)...)
		}
		errs = append(errs, r.Remove(ctx))
	}
	return errors.Join(errs...)
}

// Search describes an attachment whose reservations are looked for.
type Search struct {
	Dirs                []string
	ContainerID, IfName string
	Addresses           []netip.Addr // that it has, as far as they are known

	// Thorough has all files read: more addresses may be reserved for it.
	Thorough bool
	// Emptied decides whether an empty reservation is the attachment's, if Thorough; nil:
	// none is.
	Emptied func(Reservation) bool
	// Only bounds the addresses; nil: it may be any.
	Only func(netip.Addr) bool
}

// Find returns the reservations of the attachment.
func Find(s Search) (all []Reservation, err error) {
	var errs []error
	for _, dir := range s.Dirs {
		names, err := candidates(dir, s.Thorough, s.Addresses)
		if err != nil {
			errs = append(errs, fmt.Errorf("addresses of container %s: %w", s.ContainerID, err))
			continue
		}
		found, err := reservations(dir, names, func(r Reservation) bool {
			if r.content == "" {
				return s.Thorough && r.private && s.Emptied != nil && s.Emptied(r)
			}
			return holds(r.content, s.ContainerID, s.IfName) && (s.Only == nil || s.Only(r.Addr))
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

// Held returns the addresses that are reserved for the attachment, in files that name
// it.
func Held(s Search) (held []netip.Addr, err error) {
	s.Thorough, s.Emptied = true, nil
	found, err := Find(s)
	for _, r := range found {
		held = append(held, r.Addr)
	}
	return held, err
}

// Stale returns the files in host-local's directory of a network for which stale
// returns true. It is asked about each file that names an attachment, and each empty
// one that a program like host-local made. A directory that does not exist has none.
func Stale(dir string, stale func(Reservation) bool) ([]Reservation, error) {
	names, err := candidates(dir, true, nil)
	if err != nil {
		return nil, fmt.Errorf("stale addresses: %w", err)
	}
	return reservations(dir, names, func(r Reservation) bool {
		return (r.IfName != "" || r.content == "" && r.private) && stale(r)
	})
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

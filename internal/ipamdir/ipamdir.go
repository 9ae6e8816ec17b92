// Package ipamdir finds and releases reservations in the directories of
// host-local. A reservation is a file for each address that names the
// attachment. Other programs and administrators may share a directory.
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

// MadeBetween reports whether the file was made after the first time and not
// changed after the second. It is false for files of the same tick of the clock,
// whose order is unknown.
func (r Reservation) MadeBetween(after, until time.Time) bool {
	return r.Made.After(after) && !r.Made.After(until) && !r.changed.After(until)
}

// Path returns the path of the file.
func (r Reservation) Path() string { return filepath.Join(r.Dir, r.file) }

func (r Reservation) String() string { return "address " + r.file + " in " + r.Dir }

// longestReservation is more than host-local writes.
const longestReservation = 4096

// LineBreak separates the container ID and the interface name.
const LineBreak = "\r\n"

// readReservation reads a file. A file that host-local cannot have made is no
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
	r.ContainerID, r.IfName, _ = strings.Cut(strings.TrimSpace(r.content), LineBreak)
	return r, true, nil
}

// Remove deletes the file durably, under host-local's own lock, unless the file has
// changed since it was found: another container may have the address by now.
func (r Reservation) Remove(ctx context.Context) (err error) {
	lock, err := Lock(ctx, r.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("release %s: %w", r, err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	now, ok, err := readReservation(r.Dir, r.file)
	if err == nil && (!ok || now.content != r.content || r.content == "" && now != r) {
		return nil
	}
	if err == nil {
		err = os.Remove(r.Path())
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err = errors.Join(err, SyncDir(r.Dir)); err != nil {
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

// Search describes an attachment whose reservations are wanted.
type Search struct {
	Dirs                []string
	ContainerID, IfName string
	Addresses           []netip.Addr // its known addresses

	// Thorough reads all files: more addresses may be reserved for the
	// attachment.
	Thorough bool
	// Emptied decides whether an empty reservation is the attachment's, if
	// Thorough; nil decides that none is.
	Emptied func(Reservation) bool
	// Only limits the addresses; nil allows any.
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

// reservations reads the wanted files. Unreadable files become errors beside the
// result.
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
		if ok && r.IfName != "" && r.content == r.ContainerID+LineBreak+r.IfName {
			others = append(others, r)
		} else if err == nil {
			foreign = append(foreign, filepath.Join(dir, name))
		}
	}
	return foreign, others, errors.Join(errs...)
}

// SyncDir syncs a directory, so that file names and deletions survive a power
// cut. It ignores a directory that does not exist.
func SyncDir(dir string) error {
	if err := plainfile.SyncDir(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// candidates returns the files to read: those of the known addresses, or all if
// there may be more. Reading all takes longer the more containers the network
// has, so not every DEL does it.
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

// holds compares a file's content as host-local does. Files of its earliest
// versions have no interface name.
func holds(content, id, ifName string) bool {
	content = strings.TrimSpace(content)
	return content == id+LineBreak+ifName || content == id
}

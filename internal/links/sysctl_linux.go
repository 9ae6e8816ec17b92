package links

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/thread"
	"github.com/embedcni/cni/netns"
)

// Sysctl is a kernel setting in a namespace.
type Sysctl struct {
	// Path is below /proc/sys, with slashes, because an interface's name may have
	// dots.
	Path, Value string
	// Optional settings may be missing (a kernel without IPv6) or read-only (a
	// read-only /proc/sys), because nothing depends on them.
	Optional bool
}

func (s Sysctl) path() string { return filepath.Join("/proc/sys", s.Path) }

// setSysctls changes the settings that do not have their value yet, in order, in
// the namespace of c. It reads most of them by netlink. To change the others,
// the thread enters the namespace once for all.
func setSysctls(c *Conn, ns *netns.Handle, settings ...Sysctl) error {
	missing, err := unset(c, settings)
	if err != nil {
		return fmt.Errorf("in namespace %s: %w", ns.ID(), err)
	}
	return WriteSysctls(ns, missing...)
}

// WriteSysctls writes settings that are known to differ.
func WriteSysctls(ns *netns.Handle, settings ...Sysctl) error {
	if len(settings) == 0 {
		return nil
	}
	if err := thread.In(ns, func() error { return writeSysctls(settings) }); err != nil {
		return fmt.Errorf("in namespace %s: %w", ns.ID(), err)
	}
	return nil
}

// unset returns the settings that must be written through /proc/sys.
func unset(c *Conn, settings []Sysctl) ([]Sysctl, error) {
	if len(settings) == 0 {
		return nil, nil
	}
	r := c.Requests()
	known := make(map[string]*Link)
	forwarding := make(map[string]*bool)
	for _, s := range settings {
		if name, _, _, ok := s.ofInterface(); ok && known[name] == nil && len(name) < unix.IFNAMSIZ {
			known[name] = r.Link(name, unix.ENODEV)
		}
		if v6, ok := s.isForwarding(); ok {
			forwarding[s.Path] = r.Forwarding(v6)
		}
	}
	if err := r.Send(); err != nil {
		return nil, err
	}
	var rest []Sysctl
	for _, s := range settings {
		name, _, _, _ := s.ofInterface()
		if l := known[name]; l != nil && l.Has(s) {
			continue
		}
		if on := forwarding[s.Path]; on != nil && *on && s.Value == "1" {
			continue
		}
		rest = append(rest, s)
	}
	return rest, nil
}

// The settings that make a namespace forward between its interfaces.
const (
	forward4 = "net/ipv4/ip_forward"
	forward6 = "net/ipv6/conf/all/forwarding"
)

// Forward returns the setting that makes a namespace forward packets of a
// family.
func Forward(v6 bool) Sysctl {
	if v6 {
		return Sysctl{Path: forward6, Value: "1"}
	}
	return Sysctl{Path: forward4, Value: "1"}
}

func (s Sysctl) isForwarding() (v6, ok bool) {
	return s.Path == forward6, s.Path == forward4 || s.Path == forward6
}

// writeSysctls writes the settings in the namespace of the calling thread.
func writeSysctls(settings []Sysctl) error {
	for _, s := range settings {
		if err := s.write(); err != nil && !(s.Optional && inaccessible(err)) {
			return fmt.Errorf("set sysctl %s to %s: %w", s.Path, s.Value, err)
		}
	}
	return nil
}

// inaccessible reports whether an error means that a setting is missing or may not be
// changed.
func inaccessible(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS)
}

// write writes without reading first, which would cost as much. Only if writing
// is denied does it read: the setting may already have its value.
func (s Sysctl) write() error {
	f, err := os.OpenFile(s.path(), os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(s.Value)
		err = errors.Join(err, f.Close())
	}
	if err == nil {
		return nil
	}
	if is, unread := readSysctl(s.path()); unread == nil && is == s.Value {
		return nil
	}
	return err
}

func readSysctl(path string) (string, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &fs.PathError{Op: "open", Path: path, Err: err}
	}
	var buf [64]byte
	n, err := unix.Read(fd, buf[:])
	if err := errors.Join(err, unix.Close(fd)); err != nil {
		return "", &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return string(bytes.TrimSpace(buf[:max(n, 0)])), nil
}

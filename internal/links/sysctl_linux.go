package links

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/netns"
)

// Sysctl is a setting of the kernel, in a namespace.
type Sysctl struct {
	// Path is below /proc/sys, with slashes: an interface's name may have dots.
	Path, Value string
	// Optional is a setting that improves what works without it, so that it
	// may be missing (a kernel without IPv6) or not be ours to change (a
	// read-only /proc/sys).
	Optional bool
}

func (s Sysctl) path() string { return filepath.Join("/proc/sys", s.Path) }

// SetSysctls makes the settings, in order, those that are not so already. The
// thread enters the namespace once for all.
func SetSysctls(ns *netns.Handle, settings []Sysctl) error {
	if len(settings) == 0 {
		return nil
	}
	if err := ns.Do(func() error { return writeSysctls(settings) }); err != nil {
		return fmt.Errorf("in namespace %s: %w", ns.ID(), err)
	}
	return nil
}

// writeSysctls makes the settings in the namespace of the calling thread.
func writeSysctls(settings []Sysctl) error {
	for _, s := range settings {
		if err := s.write(); err != nil && !(s.Optional && notOurs(err)) {
			return fmt.Errorf("set sysctl %s to %s: %w", s.Path, s.Value, err)
		}
	}
	return nil
}

// notOurs tells whether an error means that a setting is missing, or that it
// may not be changed.
func notOurs(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS)
}

// write looks before it writes: writing takes locks that every namespace
// shares, and is not allowed where the setting was made for us.
func (s Sysctl) write() error {
	if is, err := readSysctl(s.path()); err != nil || is == s.Value {
		return err
	}
	return os.WriteFile(s.path(), []byte(s.Value), 0)
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

// CheckSysctls returns an error that names the first setting that is another.
func CheckSysctls(ns *netns.Handle, settings []Sysctl) error {
	if len(settings) == 0 {
		return nil
	}
	return ns.Do(func() error {
		for _, s := range settings {
			is, err := readSysctl(s.path())
			if err != nil {
				return fmt.Errorf("sysctl: %w", err)
			}
			if is != s.Value {
				return fmt.Errorf("sysctl %s is %s, not %s", s.Path, is, s.Value)
			}
		}
		return nil
	})
}

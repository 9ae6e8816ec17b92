package container

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/outcome"
)

// Follow opens the container's namespace again if its path leads to another one
// by now, which can happen while the container is locked by another call.
func (c *Container) Follow() error {
	if c.Place.NetNS == nil || c.fresh.isComing() || leadsTo(c.Place.Path, c.Place.NetNS) {
		return nil
	}
	return c.OpenPath(c.Place.Path, "ADD")
}

// identify returns the container's namespace for the record, with the path at which
// it will be kept.
func (c *Container) identify() (record.NetNS, error) {
	if err := c.Follow(); err != nil {
		return record.NetNS{}, fmt.Errorf("the container's network namespace: %w", err)
	}
	if c.Recorded.Record != nil && c.Recorded.Record.NetNS.Ours {
		return c.Recorded.Record.NetNS, nil // whichever path leads there from the caller
	}
	id := c.Place.NetNS.ID()
	ns := record.NetNS{Path: c.Place.Path, Dev: id.Dev, Ino: id.Ino, Pin: c.in.Pins.path(c.Recorded.ID), View: View()}
	return ns, c.fresh.identify(&ns)
}

// SameNetNS refuses a path that does not lead to the recorded namespace: a
// container has one namespace, and the record could not find an attachment in
// another.
func (r *Recorded) SameNetNS(path string) error {
	if r.Record == nil {
		return nil
	}
	id, err := identify(path)
	if err != nil {
		return fmt.Errorf("the container's network namespace: %w: %w", err, outcome.ErrInvalidNetNS)
	}
	if id != r.Record.NetNS.ID() {
		return fmt.Errorf("%s is another namespace than %s, in which the container is attached: %w",
			path, r.Record.NetNS.Path, outcome.ErrInvalidNetNS)
	}
	return nil
}

// Pin keeps the recorded namespace alive. It runs after the record is written,
// so that no pin is without a record.
func (c *Container) Pin() error {
	ns := c.Recorded.Record.NetNS
	switch {
	case c.fresh.isComing():
		return c.pinFresh()
	case ns.Ours && ns.Pin == "" && leadsTo(ns.Path, c.Place.NetNS):
		return nil // its path is a pin
	case ns.Ours && (ns.Pin == "" || isFile(ns.Path, ns.File)):
		// It was, in another mount namespace.
		if err := netns.Pin(c.Place.NetNS, ns.Path); err != nil || ns.Pin == "" {
			return err
		}
	}
	err := c.in.Pins.mount(c.Place.NetNS, ns.Pin)
	if err == nil {
		return nil
	}
	c.in.Logger.Debug("the namespace is kept by an open descriptor only", "container", c.Recorded.ID, "error", err)
	opened, err := netns.Open(ns.Path) // the container's own is closed with it
	if err != nil {
		return fmt.Errorf("keep the container's network namespace: %w: %w", err, outcome.ErrInvalidNetNS)
	}
	if id := opened.ID(); id != c.Recorded.Record.NetNS.ID() {
		return joined.Errors(fmt.Errorf("%s has become another namespace, %s: %w", ns.Path, id, outcome.ErrInvalidNetNS), opened.Close())
	}
	return c.in.Pins.hold(c.Recorded.ID, opened)
}

// Unpin stops keeping the namespace alive.
func (r *Recorded) Unpin() error { return r.in.Pins.release(r.ID) }

// fresh is a namespace that a Setup makes for its container. It has no name until the
// record names its path, so that it ends with this process, if that ends before. The
// same is true of the file on which it is mounted.
type fresh struct {
	placed  bool     // its path leads to it
	chosen  bool     // by the caller; otherwise the path is that of the container's pin
	file    *os.File // without a name; nil if the file system makes none
	durable bool     // the file outlives a power cut
}

// MakeNetNS makes a namespace for the container, which Pin mounts at the path, or at a
// path of the library's if that is empty. It goes with the container. The path must not
// exist, but may be the container's from an earlier Setup, which has yet to be removed;
// see RemakeNetNS.
func (c *Container) MakeNetNS(path string) (err error) {
	c.Leave()
	if path != "" && !filepath.IsAbs(path) {
		return fmt.Errorf("path %q of a new network namespace is relative: %w", path, outcome.ErrInvalidNetNS)
	}
	own := c.in.Pins.path(c.Recorded.ID)
	if path != "" && c.in.Pins.isInside(path) {
		if filepath.Base(path) != filepath.Base(own) {
			return joined.Errors(refuseExisting(path), fmt.Errorf("path %q of a new network namespace is another container's: %w", path, outcome.ErrInvalidNetNS))
		}
		path = "" // as an earlier Setup has returned it
	}
	c.fresh = &fresh{chosen: path != ""}
	if c.Place.Path = own; path != "" {
		c.Place.Path = filepath.Clean(path)
	}
	c.Place.NetNS, err = netns.New()
	return err
}

// MakesNetNS reports whether the call makes the container's namespace.
func (c *Container) MakesNetNS() bool { return c.fresh != nil }

// RemakeNetNS prepares an attempt to attach the container: if an earlier attempt has
// used up the namespace, it makes another. It refuses a path that exists.
func (c *Container) RemakeNetNS() (err error) {
	if c.fresh == nil {
		return nil
	}
	if c.fresh.placed {
		c.Leave()
		c.fresh = &fresh{chosen: c.fresh.chosen}
		if c.Place.NetNS, err = netns.New(); err != nil {
			return err
		}
	}
	if !c.fresh.chosen {
		return nil
	}
	return refuseExisting(c.Place.Path)
}

// refuseExisting refuses a path at which there is something.
func refuseExisting(path string) error {
	switch _, err := os.Lstat(path); {
	case err == nil:
		return fmt.Errorf("path %q of a new network namespace: %w: %w", path, fs.ErrExist, outcome.ErrInvalidNetNS)
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("path of a new network namespace: %w: %w", err, outcome.ErrInvalidNetNS)
	}
	return nil
}

// OutlivesPowerCut reports whether the file of a namespace that this call makes does, so
// that its record must do so too.
func (c *Container) OutlivesPowerCut() bool { return c.fresh != nil && c.fresh.durable }

// isComing reports whether a namespace is being made to which no path leads yet.
func (f *fresh) isComing() bool { return f != nil && !f.placed }

// close closes the file.
func (f *fresh) close() {
	if f != nil && f.file != nil {
		_ = f.file.Close() // nothing was written
		f.file = nil
	}
}

// identify completes the record of the namespace. It makes the file.
func (f *fresh) identify(ns *record.NetNS) error {
	if f == nil {
		return nil
	}
	ns.Ours = true
	if !f.chosen {
		ns.Pin = ""
		return nil
	}
	dir := filepath.Dir(ns.Path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("directory of a new network namespace: %w: %w", err, outcome.ErrInvalidNetNS)
	}
	var st unix.Statfs_t
	err := unix.Statfs(dir, &st)
	f.durable = err != nil || st.Type != unix.TMPFS_MAGIC && st.Type != unix.RAMFS_MAGIC
	f.close()
	f.file, err = os.OpenFile(dir, unix.O_TMPFILE|os.O_RDWR, 0o444)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("file for a new network namespace: %w: %w", err, outcome.ErrInvalidNetNS)
	}
	info, err := f.file.Stat()
	if err == nil {
		ns.File = fileOf(info)
	}
	return err
}

// pinFresh mounts the namespace that the call makes, at its path and at its pin.
func (c *Container) pinFresh() error {
	ns := c.Recorded.Record.NetNS
	if ns.Pin != "" {
		if err := c.in.Pins.mount(c.Place.NetNS, ns.Pin); err != nil {
			return err
		}
		if err := c.fresh.link(ns.Path); err != nil {
			return fmt.Errorf("file for a new network namespace: %w: %w", err, outcome.ErrInvalidNetNS)
		}
	}
	if err := c.in.Pins.mount(c.Place.NetNS, ns.Path); err != nil {
		return err
	}
	c.fresh.placed = true
	c.in.Pins.warnOnce(ns.Path, c.Place.NetNS.ID(), c.in.Logger)
	return nil
}

// link gives the file its name, unless that is taken.
func (f *fresh) link(path string) error {
	if f.file == nil {
		file, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE|os.O_EXCL, 0o444)
		if err == nil {
			err = file.Close()
		}
		return err
	}
	defer f.close()
	from := fmt.Sprintf("/proc/thread-self/fd/%d", f.file.Fd())
	if err := unix.Linkat(unix.AT_FDCWD, from, unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW); err != nil {
		return &fs.PathError{Op: "link", Path: path, Err: err}
	}
	return nil
}

// fileOf returns the identity of a file.
func fileOf(info fs.FileInfo) *record.File {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	return &record.File{Ino: st.Ino, ModTime: info.ModTime().UTC()}
}

// isFile reports whether the empty file is at path, with nothing mounted on it.
func isFile(path string, file *record.File) bool {
	info, err := os.Lstat(path)
	if err != nil || file == nil || !info.Mode().IsRegular() || info.Size() != 0 {
		return false
	}
	there := fileOf(info)
	return there != nil && there.Ino == file.Ino && there.ModTime.Equal(file.ModTime)
}

// removeOurs removes the namespace that was made for a container, if that one is still
// mounted at its path; and its file, if that is still the same. sameBoot is false if the
// machine was rebooted since: then the namespace is gone, and another may have its
// number. At a path in this library's directory, whose name is random, there is no other.
func removeOurs(ns record.NetNS, sameBoot bool) error {
	if sameBoot || ns.Pin == "" {
		if removed, err := netns.RemoveIf(ns.Path, ns.ID()); removed || err != nil {
			return err
		}
	}
	// The file alone may be left, of a mount that was not made yet, or is gone.
	if ns.Pin == "" {
		_, err := identify(ns.Path)
		if errors.Is(err, netns.ErrNotNetNS) {
			return netns.Remove(ns.Path) // in this library's directory
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	if isFile(ns.Path, ns.File) {
		return netns.Remove(ns.Path)
	}
	return nil
}

package container

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/netns"
)

// Pins keep containers' namespaces alive from their record to their completed
// DEL, because a DEL could not reach the interfaces in them otherwise. They use
// a bind mount or, where mounts are not allowed, an open descriptor, which ends
// with the process.
type Pins struct {
	dir   string
	empty string // an empty file that exists while a container is locked

	mu   sync.Mutex
	open map[record.ID]*netns.Handle

	warned sync.Once
}

// NewPins returns the pins of the records in a directory, of containers that are locked
// in lockFile.
func NewPins(recordDir, lockFile string) *Pins {
	return &Pins{dir: filepath.Join(recordDir, "netns"), empty: lockFile, open: make(map[record.ID]*netns.Handle)}
}

// mount is [netns.Pin] for a namespace whose container is locked.
//
// The file to mount on is another name of the lock file if that is possible: a name takes
// ext4 15 µs, and a new file up to 300 µs, because it looks at all inodes that were freed
// lately.
func (p *Pins) mount(ns *netns.Handle, path string) error {
	linked := filepath.Dir(path) == p.dir && p.link(path)
	err := netns.Pin(ns, path)
	if err != nil && linked {
		err = joined.Errors(err, os.Remove(path))
	}
	return err
}

// link gives the lock file another name, unless it is a symbolic link or holds something.
func (p *Pins) link(path string) bool {
	if err := os.Link(p.empty, path); err != nil {
		return false // on another file system, or there is a file: Pin deals with it
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() && info.Size() == 0 {
		return true
	}
	_ = os.Remove(path) // Pin reports a file that stays
	return false
}

// warnOnce warns, the first time, if others do not see a namespace that is mounted at a path.
func (p *Pins) warnOnce(path string, ns netns.ID, logger *slog.Logger) {
	p.warned.Do(func() {
		if hiddenFrom(firstRoot, path, ns) {
			logger.Warn("network namespaces made for containers will not be seen in the mount namespace of the machine, "+
				"nor by this program when it is started again: share the mounts of the directory", "path", filepath.Dir(path))
		}
	})
}

func (p *Pins) path(id record.ID) string {
	return p.File(record.Name(id))
}

// File returns the path at which the namespace of a record is mounted, by the name of
// the record's file.
func (p *Pins) File(name string) string { return filepath.Join(p.dir, name) }

// isInside reports whether a path is in the directory of the pins, however that is
// spelled.
func (p *Pins) isInside(path string) bool {
	dir := filepath.Dir(filepath.Clean(path))
	its, err := os.Stat(dir)
	own, oerr := os.Stat(p.dir)
	if err == nil && oerr == nil {
		return os.SameFile(its, own)
	}
	return resolved(dir) == resolved(p.dir)
}

// resolved returns an absolute path without symbolic links, as far as it exists.
func resolved(path string) string {
	path, err := filepath.Abs(path)
	if err != nil {
		return path
	}
	if real, err := filepath.EvalSymlinks(path); err == nil || filepath.Dir(path) == path {
		return real
	}
	return filepath.Join(resolved(filepath.Dir(path)), filepath.Base(path))
}

// Holds reports whether the namespace is kept for a container.
func (p *Pins) Holds(ns *netns.Handle) bool {
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	return slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return leadsTo(p.File(e.Name()), ns) })
}

// WasMounted reports whether a container's namespace was kept by a mount, which
// may be gone. Its file stays until the container is removed.
func (p *Pins) WasMounted(id record.ID) bool {
	_, err := os.Lstat(p.path(id))
	return err == nil
}

// At returns the path at which the namespace of a record is kept, by the name
// of the record's file; empty if none is.
func (p *Pins) At(file string) string {
	path := p.File(file)
	if _, err := identify(path); errors.Is(err, fs.ErrNotExist) || errors.Is(err, netns.ErrNotNetNS) {
		return ""
	}
	return path
}

// Discard deletes the file of a pin whose namespace is gone.
func (p *Pins) Discard(file string) error { return netns.Remove(p.File(file)) }

// Keeps reports whether the namespace of a container is kept alive by a mount or
// by a descriptor of this process.
func (p *Pins) Keeps(id record.ID) bool {
	_, err := identify(p.path(id))
	return err == nil || p.openPath(id) != ""
}

// openPath returns a path for plugins to a namespace that is kept by a
// descriptor, or an empty one.
func (p *Pins) openPath(id record.ID) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	ns := p.open[id]
	if ns == nil {
		return ""
	}
	return descriptorPath(ns)
}

// Where returns a path that leads to the kept namespace of a container whose record
// is damaged. It is empty if none is kept.
func (p *Pins) Where(id record.ID) (string, error) {
	_, err := identify(p.path(id))
	switch {
	case err == nil:
		return p.path(id), nil
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, netns.ErrNotNetNS):
		return p.openPath(id), nil
	}
	return "", fmt.Errorf("kept namespace: %w", err)
}

// release closes the descriptor and removes the mount that keep a container's
// namespace, if there are any.
func (p *Pins) release(id record.ID) error {
	p.mu.Lock()
	ns := p.open[id]
	delete(p.open, id)
	p.mu.Unlock()
	var err error
	if ns != nil {
		err = ns.Close()
	}
	return joined.Errors(err, netns.Remove(p.path(id)))
}

// hold keeps a namespace by a descriptor.
func (p *Pins) hold(id record.ID, ns *netns.Handle) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	earlier := p.open[id]
	p.open[id] = ns
	if earlier != nil {
		return earlier.Close()
	}
	return nil
}

// strays returns the paths of pins without a record. A power cut can bring back
// the empty file of a pin, and earlier versions kept such files as "spare.N",
// which can still be mount points.
func (p *Pins) strays(records *record.Store) ([]string, error) {
	entries, err := os.ReadDir(p.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("kept namespaces: %w", err)
	}
	var found []string
	for _, e := range entries {
		path := filepath.Join(p.dir, e.Name())
		// A pin has the name of its record's file, see File.
		known, err := records.Exists(e.Name())
		if err != nil {
			return nil, fmt.Errorf("kept namespaces: %w", err)
		}
		if !known {
			found = append(found, path)
		}
	}
	return found, nil
}

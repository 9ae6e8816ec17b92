package cni

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/embedcni/cni/internal/nsfind"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/netns"
)

// keeper keeps containers' namespaces alive from their record to their
// completed DEL, which otherwise could not reach what is in them: pinned by a
// bind mount, or where mounts are not allowed by an open descriptor, for as
// long as the process lives.
type keeper struct {
	dir string

	mu   sync.Mutex
	open map[record.ID]*netns.Handle
}

func newKeeper(recordDir string) *keeper {
	return &keeper{dir: filepath.Join(recordDir, "netns"), open: make(map[record.ID]*netns.Handle)}
}

func (k *keeper) path(id record.ID) string {
	return k.file(record.Name(id))
}

// file is path by the name of the record's file.
func (k *keeper) file(name string) string { return filepath.Join(k.dir, name) }

// identify says which namespace the operation's is, and where it will be kept.
func (op *operation) identify() (record.NetNS, error) {
	if err := op.follow(); err != nil {
		return record.NetNS{}, fmt.Errorf("the container's network namespace: %w", err)
	}
	id := op.container.ID()
	ns := record.NetNS{Path: op.path, Dev: id.Dev, Ino: id.Ino, Pin: op.kept.path(op.id), Ours: op.ours}
	if op.rec != nil && op.rec.NetNS.Ours {
		ns.Ours = true
	}
	if ns.Ours {
		ns.Pin = ""
	}
	ns.View = nsfind.View()
	return ns, nil
}

// sameNetNS refuses a path that does not lead to the recorded namespace: a
// container has one, and what is attached in it could not be found again if
// the record said another.
func (op *operation) sameNetNS(path string) error {
	if op.rec == nil {
		return nil
	}
	id, err := nsfind.Identify(path)
	if err != nil {
		return fmt.Errorf("the container's network namespace: %w: %w", err, ErrInvalidNetNS)
	}
	if id != (netns.ID{Dev: op.rec.NetNS.Dev, Ino: op.rec.NetNS.Ino}) {
		return fmt.Errorf("%s is another namespace than %s, in which the container is attached: %w",
			path, op.rec.NetNS.Path, ErrInvalidNetNS)
	}
	return nil
}

// pin keeps the recorded namespace alive. It comes after the record, so that no
// pin is ever without one.
func (op *operation) pin(rec record.NetNS) error {
	if rec.Ours && nsfind.LeadsTo(rec.Path, op.container) {
		return nil // its path is a pin
	}
	if rec.Ours { // it was, in another mount namespace
		return netns.Pin(op.container, rec.Path)
	}
	err := netns.Pin(op.container, rec.Pin)
	if err == nil {
		return nil
	}
	op.logger.Debug("the namespace is kept by an open descriptor only", "container", op.id, "error", err)
	ns, err := netns.Open(rec.Path) // the operation's own is closed at its end
	if err != nil {
		return fmt.Errorf("keep the container's network namespace: %w: %w", err, ErrInvalidNetNS)
	}
	if id := ns.ID(); id != (netns.ID{Dev: rec.Dev, Ino: rec.Ino}) {
		return join(fmt.Errorf("%s has become another namespace, %s: %w", rec.Path, id, ErrInvalidNetNS), ns.Close())
	}
	op.kept.mu.Lock()
	defer op.kept.mu.Unlock()
	earlier := op.kept.open[op.id]
	op.kept.open[op.id] = ns
	if earlier != nil {
		return earlier.Close()
	}
	return nil
}

// holds reports whether the namespace is kept for a container.
func (k *keeper) holds(ns *netns.Handle) bool {
	entries, err := os.ReadDir(k.dir)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	return slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return nsfind.LeadsTo(k.file(e.Name()), ns) })
}

// mounts reports whether a container's namespace was kept by a mount, which may be
// gone. Its file stays until the container is removed.
func (k *keeper) mounts(id record.ID) bool {
	_, err := os.Lstat(k.path(id))
	return err == nil
}

// keeps returns the path at which the namespace of a record is kept, by the name
// of the record's file; empty if none is.
func (k *keeper) keeps(file string) string {
	path := k.file(file)
	if _, err := nsfind.Identify(path); errors.Is(err, fs.ErrNotExist) || errors.Is(err, netns.ErrNotNetNS) {
		return ""
	}
	return path
}

// discard deletes the file by which a namespace was kept that is gone.
func (k *keeper) discard(file string) error { return netns.Remove(k.file(file)) }

// keepsFor reports whether the namespace of a container is kept alive by a mount or
// by a descriptor of this process.
func (k *keeper) keepsFor(id record.ID) bool {
	_, err := nsfind.Identify(k.path(id))
	return err == nil || k.openPath(id) != ""
}

// openPath leads plugins to a namespace that is kept by a descriptor, or is
// empty.
func (k *keeper) openPath(id record.ID) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	ns := k.open[id]
	if ns == nil {
		return ""
	}
	return nsfind.DescriptorPath(ns)
}

// keptHere reports whether the operation's namespace is kept alive by a mount in this
// mount namespace, or by a descriptor of this process.
func (op *operation) keptHere() bool {
	return nsfind.LeadsTo(op.kept.path(op.id), op.container) || op.kept.openPath(op.id) != ""
}

// where is a path that leads to the kept namespace, if the record does not say
// it; empty without one.
func (k *keeper) where(id record.ID) (string, error) {
	_, err := nsfind.Identify(k.path(id))
	switch {
	case err == nil:
		return k.path(id), nil
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, netns.ErrNotNetNS):
		return k.openPath(id), nil
	}
	return "", fmt.Errorf("kept namespace: %w", err)
}

// unpin lets the namespace go.
func (op *operation) unpin() error {
	op.kept.mu.Lock()
	ns := op.kept.open[op.id]
	delete(op.kept.open, op.id)
	op.kept.mu.Unlock()
	var err error
	if ns != nil {
		err = ns.Close()
	}
	return join(err, netns.Remove(op.kept.path(op.id)))
}

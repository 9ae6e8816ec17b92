package cni

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"sync"

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
	open map[string]*netns.Handle // by container ID
}

func newKeeper(recordDir string) *keeper {
	return &keeper{dir: filepath.Join(recordDir, "netns"), open: make(map[string]*netns.Handle)}
}

func (k *keeper) path(id string) string {
	sum := sha256.Sum256([]byte(id))
	return filepath.Join(k.dir, hex.EncodeToString(sum[:16]))
}

// pin keeps the operation's namespace, and says which one it is.
func (op *operation) pin() (record.NetNS, error) {
	ns, err := netns.Open(op.path)
	if err != nil {
		return record.NetNS{}, fmt.Errorf("pin the container's network namespace: %w: %w", err, ErrInvalidNetNS)
	}
	id := ns.ID()
	rec := record.NetNS{Path: op.path, Dev: id.Dev, Ino: id.Ino}
	pin := op.kept.path(op.id)
	if err := netns.Pin(ns, pin); err == nil {
		rec.Pin = pin
		return rec, ns.Close()
	} else {
		op.logger.Debug("the namespace is kept by an open descriptor only", "container", op.id, "error", err)
	}
	op.kept.mu.Lock()
	defer op.kept.mu.Unlock()
	if earlier := op.kept.open[op.id]; earlier != nil {
		err = earlier.Close()
	}
	op.kept.open[op.id] = ns
	rec.Pin = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.File().Fd())
	return rec, err
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

package testhost

import (
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
)

// PoolPath returns the path of a pool's namespace.
func (h *Host) PoolPath(name string) string {
	h.T.Helper()
	found, err := filepath.Glob(h.Path("state", "embedcni", "attachments", "pool", "*", name))
	expect.NoError(h.T, err)
	if len(found) != 1 {
		h.T.Fatalf("%d namespaces of the name %s, want one", len(found), name)
	}
	return found[0]
}

// PoolFiles returns the names of the pools' namespaces.
func (h *Host) PoolFiles() (names []string) {
	h.T.Helper()
	found, err := filepath.Glob(h.Path("state", "embedcni", "attachments", "pool", "*", "*"))
	expect.NoError(h.T, err)
	for _, path := range found {
		names = append(names, filepath.Base(path))
	}
	return names
}

// WantFull waits until a pool is full and no other warm container is being
// removed, and returns the IDs of the containers.
func (h *Host) WantFull(r *cni.Runtime, p *cni.Pool, size int) (ids []string) {
	h.T.Helper()
	for end := time.Now().Add(expect.Patience); ; time.Sleep(time.Millisecond) {
		full := p.Ready() == size
		all, err := r.Attachments()
		expect.NoError(h.T, err)
		ids = nil
		for _, a := range all {
			if strings.HasPrefix(a.ContainerID, "warm-") && !slices.Contains(ids, a.ContainerID) {
				ids = append(ids, a.ContainerID)
				full = full && a.State == cni.Ready
			}
		}
		if full && len(ids) == size {
			return ids
		}
		if time.Now().After(end) {
			h.T.Fatalf("%d containers are ready, and on record: %q, want %d", p.Ready(), ids, size)
		}
	}
}

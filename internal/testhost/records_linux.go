package testhost

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/engine/leftovers"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/netns"
)

// Unrecord deletes a container's record and pin, as if go-cni had attached it.
func (h *Host) Unrecord(id string) {
	h.T.Helper()
	expect.NoError(h.T, os.Remove(h.RecordFile(id)+".json"))
	expect.NoError(h.T, netns.Remove(h.Pin(id)))
}

// ForgetKinds removes the kinds of plugins from a record: early versions
// recorded none.
func (h *Host) ForgetKinds(id string) {
	h.T.Helper()
	h.ChangeRecord(id, func(rec *record.Record) {
		for i := range rec.Attachments {
			rec.Attachments[i].Plugins = nil
		}
	})
}

// Recorded renders the recorded attachments: "c1/eth0 attached".
func Recorded(t testing.TB, r *cni.Runtime) []string {
	t.Helper()
	lines := []string{}
	for _, a := range expect.Value(r.Attachments())(t) {
		lines = append(lines, fmt.Sprintf("%s/%s %s", a.ContainerID, a.IfName, a.State))
	}
	return lines
}

// Records returns the host's records.
func (h *Host) Records() *record.Store {
	return record.Open(h.Path("state", "embedcni", "attachments"))
}

// ChangeRecord rewrites a container's record.
func (h *Host) ChangeRecord(id string, change func(*record.Record)) {
	h.T.Helper()
	rec := expect.Value(h.Records().Load(record.ID(id)))(h.T)
	change(rec)
	expect.NoError(h.T, h.Records().Begin(rec))
}

// Pinned reports whether a container's namespace is pinned.
func (h *Host) Pinned(id string) bool {
	h.T.Helper()
	return len(expect.Value(filepath.Glob(h.Pin(id)))(h.T)) > 0
}

// Entered notes attachments in an owner's ledger, as earlier versions did. It returns the
// path of the file.
func (h *Host) Entered(owner string, lines ...leftovers.Line) (path string) {
	h.T.Helper()
	sum := sha256.Sum256([]byte(owner))
	path = h.Path("state", "embedcni", "attachments", fmt.Sprintf("ledger.%x.claims", sum[:8]))
	expect.NoError(h.T, os.MkdirAll(filepath.Dir(path), 0o700))
	f := expect.Value(os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600))(h.T)
	for _, line := range lines {
		data := expect.Value(json.Marshal(line))(h.T)
		sum := sha256.Sum256(data)
		expect.Value(fmt.Fprintf(f, "%x %s\n", sum[:8], data))(h.T)
	}
	expect.NoError(h.T, f.Close())
	return path
}

// VerdictOn returns the verdict on a container, and reports whether there is one.
func VerdictOn(all []cni.Health, id string) (cni.Health, bool) {
	for _, h := range all {
		if h.ContainerID == id {
			return h, true
		}
	}
	return cni.Health{}, false
}

// Healthy returns the number of healthy containers.
func Healthy(all []cni.Health) (n int) {
	for _, h := range all {
		if h.State == cni.StateHealthy {
			n++
		}
	}
	return n
}

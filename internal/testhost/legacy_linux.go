package testhost

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/record"
)

// Life returns how records name this process.
func (h *Host) Life(r *cni.Runtime) (life, runtime string) {
	h.T.Helper()
	path := h.Container("life-of-this-process")
	_, err := r.Setup(context.Background(), "life-of-this-process", path)
	expect.NoError(h.T, err)
	rec, err := h.Records().Load("life-of-this-process")
	expect.NoError(h.T, err, r.Remove(context.Background(), "life-of-this-process", path))
	return rec.Life, rec.Runtime
}

// Entered notes attachments in an owner's ledger, as earlier versions did. It returns the
// path of the file.
func (h *Host) Entered(owner string, lines ...record.Line) (path string) {
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

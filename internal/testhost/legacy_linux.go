package testhost

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/netns"
)

// Pooled attaches a container as a pool of an earlier version did, whose process has
// ended since: in a namespace in the pool's directory, and known to its plugins as
// pluginID. With an id it has been taken by that container; without, by nobody yet. It
// returns the path of the namespace.
func (h *Host) Pooled(r *cni.Runtime, pluginID, id string, opts ...cni.NamespaceOpts) (path string) {
	h.T.Helper()
	pool := h.Path("state", "embedcni", "attachments", "pool", "1:1")
	expect.NoError(h.T, os.MkdirAll(pool, 0o700))
	path = pool + "/" + pluginID
	ns, err := netns.Create(path)
	expect.NoError(h.T, err)
	expect.NoError(h.T, ns.Close())
	h.T.Cleanup(func() {
		if err := netns.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			h.T.Error(err)
		}
	})
	_, err = r.Setup(context.Background(), pluginID, path, opts...)
	expect.NoError(h.T, err)
	expect.NoError(h.T, netns.Remove(h.Pin(pluginID))) // the path was the pin
	h.ChangeRecord(pluginID, func(rec *record.Record) {
		rec.NetNS.Ours, rec.NetNS.Pin = true, ""
		rec.Runtime, rec.Life = "1:1", ""
		if rec.Warm = id == ""; !rec.Warm {
			rec.ContainerID, rec.PluginID = record.ID(id), record.PluginID(pluginID)
		}
	})
	if id != "" {
		rec, err := h.Records().Load(record.ID(id))
		expect.NoError(h.T, err)
		for _, n := range rec.Attachments { // as a log that survives damage before it
			expect.NoError(h.T, h.Records().Append(rec, record.Entry{IfName: n.IfName, State: n.State}))
		}
		expect.NoError(h.T, h.Records().Delete(record.ID(pluginID)))
	}
	return path
}

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
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	expect.NoError(h.T, err)
	for _, line := range lines {
		data, err := json.Marshal(line)
		expect.NoError(h.T, err)
		sum := sha256.Sum256(data)
		_, err = fmt.Fprintf(f, "%x %s\n", sum[:8], data)
		expect.NoError(h.T, err)
	}
	expect.NoError(h.T, f.Close())
	return path
}

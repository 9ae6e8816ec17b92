package behaviour_test

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// pooled attaches a container as a pool of an earlier version did, whose process has
// ended since: in a namespace in the pool's directory, and known to its plugins as
// pluginID. With an id it has been taken by that container; without, by nobody yet. It
// returns the path of the namespace.
func pooled(h *testhost.Host, r *cni.Runtime, pluginID, id string, opts ...cni.NamespaceOpts) (path string) {
	h.T.Helper()
	pool := h.Path("state", "embedcni", "attachments", "pool", "1:1")
	expect.NoError(h.T, os.MkdirAll(pool, 0o700))
	path = pool + "/" + pluginID
	ns := expect.Value(netns.Create(path))(h.T)
	expect.NoError(h.T, ns.Close())
	h.T.Cleanup(func() {
		if err := netns.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			h.T.Error(err)
		}
	})
	expect.Value(r.Setup(context.Background(), pluginID, path, opts...))(h.T)
	expect.NoError(h.T, netns.Remove(h.Pin(pluginID))) // the path was the pin
	h.ChangeRecord(pluginID, func(rec *record.Record) {
		rec.NetNS.Ours, rec.NetNS.Pin = true, ""
		rec.Runtime, rec.Life = "1:1", ""
		if rec.Warm = id == ""; !rec.Warm {
			rec.ContainerID, rec.PluginID = record.ID(id), record.PluginID(pluginID)
		}
	})
	if id != "" {
		rec := expect.Value(h.Records().Load(record.ID(id)))(h.T)
		for _, n := range rec.Attachments { // as a log that survives damage before it
			expect.NoError(h.T, h.Records().Append(rec, record.Entry{IfName: n.IfName, State: n.State}))
		}
		expect.NoError(h.T, h.Records().Delete(record.ID(pluginID)))
	}
	return path
}

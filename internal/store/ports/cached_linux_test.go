package ports

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/store/record"
)

const (
	forwarding = `{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "portmap", "capabilities": {"portMappings": true}}]}`
	deaf       = `{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "bridge"}]}`
)

// cacheDir is a directory with a cache, beside one with records.
type cacheDir struct {
	t       testing.TB
	dir     string
	records *record.Store
	index   *Index
}

func newCache(t testing.TB) *cacheDir {
	t.Helper()
	c := &cacheDir{t: t, dir: t.TempDir()}
	c.records = record.Open(filepath.Join(c.dir, "attachments"))
	c.again()
	return c
}

// again makes the Index of another process.
func (c *cacheDir) again() {
	c.index = Open(c.records, c.dir, slog.New(slog.DiscardHandler))
	c.index.state = dirs{c.records.Dir(), c.index.results}.watched()
}

// record puts a container on record.
func (c *cacheDir) record(id string) {
	c.t.Helper()
	expect.NoError(c.t, c.records.Begin(&record.Record{ContainerID: record.ID(id)}))
}

// add writes a file as libcni does.
func (c *cacheDir) add(id, config string, port int) string {
	c.t.Helper()
	data, err := json.Marshal(struct {
		Kind           string         `json:"kind"`
		ContainerID    string         `json:"containerId"`
		Config         []byte         `json:"config"`
		IfName         string         `json:"ifName"`
		NetworkName    string         `json:"networkName"`
		NetNS          string         `json:"netns"`
		CapabilityArgs map[string]any `json:"capabilityArgs"`
	}{"cniCacheV1", id, []byte(config), "eth0", "net", "/run/netns/" + id, map[string]any{
		"portMappings": []any{map[string]any{"hostPort": port, "containerPort": 80, "protocol": "tcp"}},
	}})
	expect.NoError(c.t, err)
	return c.write("net-"+id+"-eth0", data)
}

func (c *cacheDir) write(name string, data []byte) string {
	c.t.Helper()
	path := filepath.Join(c.dir, "results", name)
	expect.NoError(c.t, os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, data, 0o600))
	return path
}

// has returns the containers that have TCP port 8080.
func (c *cacheDir) has() string {
	c.t.Helper()
	var ids []record.ID
	for _, found := range c.find(claimsOf(8080)) {
		ids = append(ids, found.Record.ContainerID)
	}
	return fmt.Sprint(ids)
}

// find returns the conflicts of a container with those that are only in the cache.
func (c *cacheDir) find(wanted []Claim) []Conflict {
	c.t.Helper()
	return expect.Value(c.index.Unrecorded(&record.Record{ContainerID: "wants"}, wanted, nil))(c.t)
}

func TestFindsWhatIsOnlyInTheCache(t *testing.T) {
	c := newCache(t)
	expect.Same(t, "without a cache", c.has(), "[]")
	c.add("other", forwarding, 8081)
	c.add("deaf", deaf, 8080)
	c.record("ours")
	c.add("ours", forwarding, 8080)
	c.write("garbage", []byte(`{"capabilityArgs": {"portMappings"`))
	c.write("numbered", []byte(`{"containerId": 7, "capabilityArgs": {"portMappings": []}}`))
	c.write("result-of-an-old-libcni", []byte(`{"cniVersion": "0.4.0", "portMappings": []}`))
	expect.NoError(t, syscall.Mkfifo(filepath.Join(c.dir, "results", "fifo"), 0o600))
	expect.Same(t, "none", c.has(), "[]")
	path := c.add("c1", forwarding, 8080)
	expect.Same(t, "one is new", c.has(), "[c1]")
	c.add("a1", forwarding, 8080)
	expect.Same(t, "in order", c.has(), "[a1 c1]")
	got := c.find(claimsOf(8081))[0]
	expect.Same(t, "attachment", []string{string(got.Record.ContainerID), got.Attachment.Network, got.Attachment.IfName, got.Record.NetNS.Path, got.Claim.String()},
		[]string{"other", "net", "eth0", "/run/netns/other", "tcp 8081"})
	expect.Same(t, "nothing wanted", len(c.find(nil)), 0)
	c.add("wants", forwarding, 8082)
	expect.Same(t, "the container's own", len(c.find(claimsOf(8082))), 0)
	pooled := recordOf("taken", []uint16{8083})
	pooled.PluginID = "warm-1"
	expect.NoError(t, c.records.Begin(pooled))
	c.add("warm-1", forwarding, 8083)
	expect.Same(t, "one on record, by the ID that plugins know", len(c.find(claimsOf(8083))), 0)

	expect.NoError(t, os.Remove(path))
	expect.Same(t, "one is gone", c.has(), "[a1]")
	c.add("a1", forwarding, 9000)
	expect.Same(t, "with another port at once", c.has(), "[]")
	expect.NoError(t, c.records.Delete("ours")) // its record is lost
	expect.Same(t, "lost", c.has(), "[ours]")
	c.record("ours")
	expect.Same(t, "ours again", c.has(), "[]")
	expect.NoError(t, os.RemoveAll(filepath.Join(c.dir, "results")))
	expect.Same(t, "after all", c.has(), "[]")
}

// TestPortsAreSeenInAnyText: libcni writes without spaces, as records are. Others need not.
func TestPortsAreSeenInAnyText(t *testing.T) {
	for text, want := range map[string]string{
		`{"a": {"portMappings" : [ {"hostPort": 80}, {"hostPort": "x"}, {"hostPort": 53, "protocol": "UDP"}]}}`: "[{116 80} {117 53}]",
		`{"portMappings":[{"hostPort":80}],"b":{"portMappings":[{"hostPort":81}]}}`:                             "[{116 80} {116 81}]",
		`{"x": "\"portMappings\":[{\"hostPort\":80}]", "portMappings": {}}`:                                     "[]",
		`{"portMappings": "portMappings", "y": ["portMappings"]}`:                                               "[]",
	} {
		expect.Same(t, text, fmt.Sprint(slotsIn([]byte(text))), want)
	}
}

func TestACacheThatCannotBeListed(t *testing.T) {
	c := newCache(t)
	expect.NoError(t, os.WriteFile(filepath.Join(c.dir, "results"), nil, 0o600))
	expect.Fails(t, "a file is listed", expect.Err(c.index.Unrecorded(&record.Record{}, claimsOf(8080), nil)))
}

// FuzzCached: whatever is in the cache, and whoever wrote it.
func FuzzCached(f *testing.F) {
	f.Add([]byte(`{"kind": "cniCacheV1", "containerId": "c1", "config": "e30=", "capabilityArgs": {"portMappings": [{"hostPort": 80}]}}`))
	f.Add([]byte(`{"containerId": ["c1"]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		rec := parseCached(data)
		expect.That(t, rec.ContainerID != "" || len(ClaimsOf(&rec.Attachments[0])) == 0, "%q claims ports for nobody", data)
		slotsIn(data)
	})
}

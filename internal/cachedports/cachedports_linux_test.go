package cachedports

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/embedcni/cni/internal/dirwatch"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/ports"
)

const (
	forwarding = `{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "portmap", "capabilities": {"portMappings": true}}]}`
	deaf       = `{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "bridge"}]}`
)

// cacheDir is a directory with a cache.
type cacheDir struct {
	t      testing.TB
	dir    string
	record map[string]bool
	asked  int // how often a container was looked up on record
	cache  *Cache
}

func newCache(t testing.TB) *cacheDir {
	t.Helper()
	c := &cacheDir{t: t, dir: t.TempDir(), record: make(map[string]bool)}
	c.cache = &Cache{
		place: place{dir: filepath.Join(c.dir, "results"), kept: filepath.Join(c.dir, "kept")}, state: newState(),
		logger: slog.New(slog.DiscardHandler), onRecord: func(id string) bool { c.asked++; return c.record[id] },
		listed: func() func(string) bool { return func(id string) bool { return c.record[id] } },
		open:   dirwatch.Open,
	}
	return c
}

// add writes a file as libcni does.
func (c *cacheDir) add(id, config string, port int) string {
	c.t.Helper()
	data, err := json.Marshal(map[string]any{
		"kind": "cniCacheV1", "containerId": id, "networkName": "net", "ifName": "eth0", "netns": "/run/netns/" + id, "config": []byte(config),
		"capabilityArgs": map[string]any{"portMappings": []any{map[string]any{"hostPort": port, "containerPort": 80, "protocol": "tcp"}}},
	})
	expect.NoError(c.t, err)
	return c.write("net-"+id+"-eth0", data)
}

func (c *cacheDir) write(name string, data []byte) string {
	c.t.Helper()
	path := filepath.Join(c.dir, "results", name)
	expect.NoError(c.t, os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, data, 0o600))
	return path
}

// has returns the containers that have TCP port 8080, after the interval between two lists.
func (c *cacheDir) has() string {
	c.t.Helper()
	c.cache.looked = c.cache.looked.Add(-2 * listEvery)
	return c.hasNow()
}

func (c *cacheDir) hasNow() string {
	c.t.Helper()
	found, err := c.cache.Find([]ports.Claim{{Protocol: "tcp", Port: 8080}})
	expect.NoError(c.t, err)
	var ids []string
	for _, a := range found {
		ids = append(ids, a.ContainerID)
	}
	return fmt.Sprint(ids)
}

func TestFindsWhatIsOnlyInTheCache(t *testing.T) {
	c := newCache(t)
	expect.Same(t, "without a cache", c.has(), "[]")
	c.add("other", forwarding, 8081)
	c.add("deaf", deaf, 8080)
	c.record["ours"] = true
	c.add("ours", forwarding, 8080)
	c.write("garbage", []byte(`{"capabilityArgs": {"portMappings"`))
	c.write("result-of-an-old-libcni", []byte(`{"cniVersion": "0.4.0", "portMappings": []}`))
	fifo := filepath.Join(c.dir, "results", "fifo")
	expect.NoError(t, syscall.Mkfifo(fifo, 0o600))
	expect.Same(t, "none", c.has(), "[]")
	path := c.add("c1", forwarding, 8080)
	expect.Same(t, "one is new", c.has(), "[c1]")
	c.add("a1", forwarding, 8080)
	expect.Same(t, "in order", c.has(), "[a1 c1]")
	got, err := c.cache.Find([]ports.Claim{{Protocol: "tcp", Port: 8081}})
	expect.NoError(t, err)
	expect.Same(t, "attachments", got, []Attachment{{"other", "net", "eth0", "/run/netns/other", []ports.Claim{{Protocol: "tcp", Port: 8081}}}})
	none, err := c.cache.Find(nil)
	expect.NoError(t, err)
	expect.Same(t, "nothing wanted", len(none), 0)

	expect.NoError(t, os.Remove(path))
	expect.Same(t, "at once", c.hasNow(), "[a1]")
	c.add("a1", forwarding, 9000)
	expect.Same(t, "with another port at once", c.hasNow(), "[]")
	c.record["ours"] = false // released: the container is another program's now
	expect.Same(t, "released", c.has(), "[ours]")
	expect.NoError(t, os.RemoveAll(filepath.Join(c.dir, "results")))
	expect.Same(t, "after all", c.has(), "[]")
}

// TestAFileIsReadOnce: a further attachment costs one file, however many there are.
func TestAFileIsReadOnce(t *testing.T) {
	c := newCache(t)
	for i := range 100 {
		id := fmt.Sprint("c", i)
		c.record[id] = true
		c.add(id, forwarding, 9000+i)
	}
	expect.Same(t, "at first", c.has(), "[]")
	c.asked = 0
	for i := range 10 {
		id := fmt.Sprint("new", i)
		c.record[id] = true
		c.add(id, forwarding, 8000+i)
		expect.Same(t, "then", c.has(), "[]")
	}
	expect.Same(t, "containers looked up", c.asked, 10)
}

// TestNamesAreListedOncePerInterval.
func TestNamesAreListedOncePerInterval(t *testing.T) {
	c := newCache(t)
	c.add("c1", forwarding, 8080)
	expect.Same(t, "at first", c.has(), "[c1]")
	c.add("c2", forwarding, 8080)
	expect.Same(t, "within the interval", c.hasNow(), "[c1]")
	expect.Same(t, "after it", c.has(), "[c1 c2]")
}

func TestADirectoryThatCannotBeRead(t *testing.T) {
	c := newCache(t)
	expect.NoError(t, os.WriteFile(filepath.Join(c.dir, "results"), nil, 0o600))
	if _, err := c.cache.Find([]ports.Claim{{Protocol: "tcp", Port: 8080}}); err == nil {
		t.Error("a file is listed")
	}
}

// BenchmarkFind is a search after another attachment of the runtime's own.
func BenchmarkFind(b *testing.B) {
	for _, n := range []int{10, 100, 1000, 10_000} {
		b.Run(fmt.Sprintf("%d attachments", n), func(b *testing.B) {
			c := newCache(b)
			for i := range n + 1 {
				id := fmt.Sprint("c", i)
				c.record[id] = true
				c.add(id, forwarding, 9000+i)
			}
			expect.Same(b, "at first", c.has(), "[]")
			for b.Loop() {
				expect.Same(b, "then", c.has(), "[]")
			}
		})
	}
}

package cachedports

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/dirwatch"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/ports"
)

// many returns a cache of a hundred containers, which is watched.
func many(t *testing.T) *cacheDir {
	t.Helper()
	c := newCache(t)
	for i := range 100 {
		c.add(fmt.Sprint("c", i), forwarding, 9000+i)
	}
	expect.Same(t, "at first", c.has(), "[]")
	return c
}

// holder returns the containers that have a TCP port.
func (c *cacheDir) holder(port uint16) string {
	c.t.Helper()
	found, err := c.cache.Find([]ports.Claim{{Protocol: "tcp", Port: port}})
	expect.NoError(c.t, err)
	var ids []string
	for _, a := range found {
		ids = append(ids, a.ContainerID)
	}
	return fmt.Sprint(ids)
}

// TestAWatchTellsAtOnce what other programs do, without a list.
func TestAWatchTellsAtOnce(t *testing.T) {
	c := many(t)
	if c.cache.watch == nil {
		t.Fatal("no watch")
	}
	lists := c.cache.lists
	expect.Same(t, "nobody's", c.has(), "[]")
	path := c.add("new", forwarding, 8080)
	expect.Same(t, "new", c.has(), "[new]")
	c.add("c7", forwarding, 8080) // rewritten in place
	expect.Same(t, "rewritten", c.has(), "[c7 new]")
	expect.Same(t, "its former port", c.holder(9007), "[]")
	expect.NoError(t, os.Rename(path, path+".away"))
	expect.Same(t, "under another name", c.has(), "[c7 new]")
	expect.NoError(t, os.Remove(path+".away"))
	expect.Same(t, "gone", c.has(), "[c7]")
	c.record("c7")
	expect.Same(t, "ours", c.has(), "[]")
	expect.Same(t, "lists since", c.cache.lists-lists, 0)
}

// TestADirectoryThatIsReplaced, also while nobody asks.
func TestADirectoryThatIsReplaced(t *testing.T) {
	c := many(t)
	results := filepath.Join(c.dir, "results")
	expect.NoError(t, os.Rename(results, results+".old"))
	c.add("new", forwarding, 8080)
	expect.Same(t, "in the new one", c.has(), "[new]")
	expect.Same(t, "of the old one", c.holder(9007), "[]")
	expect.NoError(t, os.RemoveAll(results))
	expect.NoError(t, os.Rename(results+".old", results))
	expect.Same(t, "the old one again", c.has(), "[]")
	expect.Same(t, "of the old one again", c.holder(9007), "[c7]")
	expect.NoError(t, os.RemoveAll(results))
	expect.Same(t, "without one", c.has(), "[]")
}

// TestAWatchThatCannotBeHad: the user has no inotify instance left. The names are listed.
func TestAWatchThatCannotBeHad(t *testing.T) {
	c := newCache(t)
	c.cache.open = func(string) (*dirwatch.Watch, error) { return nil, unix.EMFILE }
	for i := range 100 {
		c.add(fmt.Sprint("c", i), forwarding, 9000+i)
	}
	expect.Same(t, "at first", c.has(), "[]")
	c.add("new", forwarding, 8080)
	expect.Same(t, "then", c.has(), "[new]")
}

// TestAWatchThatHasMissedChanges: the kernel queues so many and no more.
func TestAWatchThatHasMissedChanges(t *testing.T) {
	c := many(t)
	text, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	expect.NoError(t, err)
	most, err := strconv.Atoi(strings.TrimSpace(string(text)))
	expect.NoError(t, err)
	a, b := c.write("a", nil), filepath.Join(c.dir, "results", "b")
	for range most/2 + 10 { // two events each
		expect.NoError(t, os.Rename(a, b))
		a, b = b, a
	}
	c.add("new", forwarding, 8080) // is not in the queue
	lists := c.cache.lists
	expect.Same(t, "missed", c.has(), "[new]")
	expect.Same(t, "lists since", c.cache.lists-lists, 1)
	c.add("newer", forwarding, 8080)
	expect.Same(t, "by the next watch", c.has(), "[new newer]")
}

package cachedports

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/ports"
	"github.com/embedcni/cni/internal/record"
)

// many returns a cache with the files of 100 containers, which have the ports from 9000 on.
func many(t testing.TB) *cacheDir {
	c := newCache(t)
	for i := range 100 {
		c.add(fmt.Sprint("c", i), forwarding, 9000+i)
	}
	expect.Same(t, "at first", c.has(), "[]")
	return c
}

// later lets another process begin.
func (c *cacheDir) later() {
	another := *c.cache
	another.state = newState()
	c.cache = &another
}

// holder returns the containers that have a port.
func (c *cacheDir) holder(port int) string {
	c.t.Helper()
	found, err := c.cache.Find([]ports.Claim{{Protocol: "tcp", Port: uint16(port)}})
	expect.NoError(c.t, err)
	var ids []string
	for _, a := range found {
		ids = append(ids, a.ContainerID)
	}
	return fmt.Sprint(ids)
}

// forge gives a file another port without a trace: only who reads it finds the port.
func (c *cacheDir) forge(id string, port int) {
	c.t.Helper()
	path := filepath.Join(c.dir, "results", "net-"+id+"-eth0")
	info, err := os.Stat(path)
	expect.NoError(c.t, err)
	c.add(id, forwarding, port)
	expect.NoError(c.t, os.Chtimes(path, info.ModTime(), info.ModTime()))
}

// TestALaterProcessReadsWhatHasChanged, and nothing else.
func TestALaterProcessReadsWhatHasChanged(t *testing.T) {
	c := many(t)
	c.forge("c1", 8001)
	c.add("c2", forwarding, 18002) // has another size
	c.add("new", forwarding, 8003)
	expect.NoError(t, os.Remove(filepath.Join(c.dir, "results", "net-c4-eth0")))
	c.later()
	for port, want := range map[int]string{9000: "[c0]", 8001: "[]", 9002: "[]", 18002: "[c2]", 8003: "[new]", 9004: "[]", 9005: "[c5]"} {
		expect.Same(t, fmt.Sprint("port ", port), c.holder(port), want)
	}
	// Only what is read is written, so the forged file shows whether another process wrote.
	for i := range keepAfter {
		c.add(fmt.Sprint("more", i), forwarding, 7000+i)
	}
	c.later()
	expect.Same(t, "one of many that are new", c.holder(7000), "[more0]")
	for i := range keepAfter {
		c.forge(fmt.Sprint("more", i), 6000+i)
	}
	c.later()
	expect.Same(t, "many are kept by the next", c.holder(6000), "[]")
}

// TestKeptFilesOfOurContainers: the record decides whose they are, in each process.
func TestKeptFilesOfOurContainers(t *testing.T) {
	c := newCache(t)
	for i := range 100 {
		id := fmt.Sprint("c", i)
		c.record[id] = true
		c.add(id, forwarding, 9000+i)
	}
	expect.Same(t, "on record", c.holder(9000), "[]")
	c.later()
	expect.Same(t, "on record, later", c.holder(9000), "[]")
	delete(c.record, "c0")
	expect.Same(t, "released", c.holder(9000), "[c0]")
	c.later()
	expect.Same(t, "released before", c.holder(9000), "[c0]")
}

// TestAListThatCannotBeUsed: all files are read, and the list is written anew.
func TestAListThatCannotBeUsed(t *testing.T) {
	for what, damage := range map[string]func(list []byte) []byte{
		"gone":               func([]byte) []byte { return nil },
		"empty":              func([]byte) []byte { return []byte{} },
		"of another version": func(list []byte) []byte { return bytes.Replace(list, []byte(" 1 "), []byte(" 2 "), 1) },
		"cut":                func(list []byte) []byte { return list[:len(list)/2] },
		"zeros":              func(list []byte) []byte { return make([]byte, len(list)) },
		"one bit":            func(list []byte) []byte { list[len(list)/2] ^= 1; return list },
	} {
		t.Run(what, func(t *testing.T) {
			c := many(t)
			list, err := os.ReadFile(c.cache.kept)
			expect.NoError(t, err)
			if list = damage(list); list == nil {
				expect.NoError(t, os.Remove(c.cache.kept))
			} else {
				expect.NoError(t, os.WriteFile(c.cache.kept, list, 0o600))
			}
			c.forge("c1", 8001)
			c.later()
			expect.Same(t, "read", c.holder(8001), "[c1]")
			c.forge("c1", 8002)
			c.later()
			expect.Same(t, "read again", c.holder(8002), "[]")
		})
	}
}

// TestFewFilesAreNotKept: they are read in no time.
func TestFewFilesAreNotKept(t *testing.T) {
	c := newCache(t)
	for i := range keepFrom - 1 {
		c.add(fmt.Sprint("c", i), forwarding, 9000+i)
	}
	expect.Same(t, "found", c.holder(9000), "[c0]")
	if _, err := os.Lstat(c.cache.kept); !os.IsNotExist(err) {
		t.Error("a list is kept:", err)
	}
}

// TestAListThatCannotBeWritten is no reason to refuse a port.
func TestAListThatCannotBeWritten(t *testing.T) {
	c := newCache(t)
	expect.NoError(t, os.MkdirAll(filepath.Join(c.cache.kept, "in the way"), 0o700))
	for i := range 100 {
		c.add(fmt.Sprint("c", i), forwarding, 9000+i)
	}
	expect.Same(t, "found", c.holder(9000), "[c0]")
	c.later()
	expect.Same(t, "found later", c.holder(9000), "[c0]")
}

// FuzzKept: a list says what it was made of, and no other text is one.
func FuzzKept(f *testing.F) {
	f.Add("net-c1-eth0", "c1", "t8080", int64(1), int64(2), "embedcni cachedports 1 00000000\n")
	f.Add("net\n-c1\t-eth0", "c1\t", "any", int64(-1), int64(0), "")
	f.Fuzz(func(t *testing.T, name, id, code string, changed, size int64, other string) {
		if strings.Contains(name+id+code, "\x00") || name == "" {
			return // not names of files
		}
		c := &Cache{state: &state{files: make(map[string]*file)}}
		c.enter(name, &file{id: id, changed: changed, size: size}, code)
		n := 0
		expect.NoError(t, decode(string(c.encode()), func(gotName, gotCode string, got *file) {
			n++
			expect.Same(t, "name", gotName, name)
			expect.Same(t, "code", gotCode, code)
			expect.Same(t, "file", *got, file{id: id, changed: changed, size: size})
		}))
		expect.Same(t, "files", n, 1)
		if err := decode(other, func(string, string, *file) {}); err == nil && !strings.HasPrefix(other, keptHead) {
			t.Errorf("%q is a list", other)
		}
	})
}

// BenchmarkLater is the first search of a process beside others' attachments.
func BenchmarkLater(b *testing.B) {
	for _, n := range []int{100, 1000, 10_000} {
		for _, kept := range []bool{false, true} {
			b.Run(fmt.Sprintf("%d attachments, kept %t", n, kept), func(b *testing.B) {
				c := newCache(b)
				for i := range n {
					id := fmt.Sprint("c", i)
					c.record[id] = true
					c.add(id, forwarding, 1000+i)
				}
				expect.Same(b, "at first", c.holder(999), "[]")
				for b.Loop() {
					if !kept {
						expect.NoError(b, os.Remove(c.cache.kept))
					}
					c.later()
					expect.Same(b, "later", c.holder(999), "[]")
				}
			})
		}
	}
}

// TestTheRecordsDecide whose the files are, when one is asked for and when all are.
func TestTheRecordsDecide(t *testing.T) {
	c := newCache(t)
	store := record.Open(filepath.Join(c.dir, "attachments"))
	for i := range 100 {
		c.add(fmt.Sprint("c", i), forwarding, 9000+i)
		if i%2 == 0 {
			expect.NoError(t, store.Begin(&record.Record{ContainerID: record.ID(fmt.Sprint("c", i))}))
		}
	}
	c.cache = Open(c.dir, c.cache.kept, store, c.cache.logger)
	for _, process := range []string{"first", "later"} {
		expect.Same(t, process+": on record", c.holder(9000), "[]")
		expect.Same(t, process+": another's", c.holder(9001), "[c1]")
		c.later()
	}
	is := c.cache.listed()
	expect.Same(t, "in the list", is("c0"), true)
	expect.Same(t, "not in the list", is("c1"), false)
	expect.NoError(t, store.Delete("c0"))
	expect.Same(t, "released", c.holder(9000), "[c0]")
}

package portindex

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/dirwatch"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/ports"
	"github.com/embedcni/cni/internal/record"
)

// host is a directory of records with an index. It counts the records that are read.
type host struct {
	t     testing.TB
	store *record.Store
	index *Index
	log   *bytes.Buffer

	mu   sync.Mutex
	read int
}

func newHost(t testing.TB) *host {
	h := &host{t: t, log: &bytes.Buffer{}}
	h.store = record.Open(filepath.Join(t.TempDir(), "attachments"))
	h.store.Sync = func(*os.File) error { return nil }
	read := h.store.Read
	h.store.Read = func(path string) ([]byte, error) {
		h.mu.Lock()
		h.read++
		h.mu.Unlock()
		return read(path)
	}
	h.index = Open(h.store, slog.New(slog.NewTextHandler(h.log, nil)))
	return h
}

// reads returns the number of records that were read since the last time.
func (h *host) reads() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.read
	h.read = 0
	return n
}

const taking = `{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "bridge"}, {"type": "portmap", "capabilities": {"portMappings": true}}]}`

// recordOf returns a record with an attachment for each list of TCP ports.
func recordOf(id string, attachments ...[]uint16) *record.Record {
	rec := &record.Record{ContainerID: record.ID(id), Boot: "boot", Host: "host"}
	for i, all := range attachments {
		a := record.Attachment{Network: "net", IfName: fmt.Sprint("eth", i), Config: []byte(taking)}
		if len(all) > 0 {
			var mappings []map[string]any
			for _, p := range all {
				mappings = append(mappings, map[string]any{"hostPort": p, "containerPort": 80, "protocol": "tcp"})
			}
			data, _ := json.Marshal(mappings)
			a.Capabilities = map[string]json.RawMessage{Capability: data}
		}
		rec.Attachments = append(rec.Attachments, a)
	}
	return rec
}

func (h *host) write(rec *record.Record) *record.Record {
	h.t.Helper()
	expect.NoError(h.t, h.store.Begin(rec))
	return rec
}

// find renders the holders of TCP ports: "c1/eth0 tcp 80".
func (h *host) find(wanted ...uint16) []string {
	h.t.Helper()
	holders, err := h.index.Find(claimsOf(wanted...))
	expect.NoError(h.t, err)
	return rendered(holders)
}

func claimsOf(all ...uint16) (claims []ports.Claim) {
	for _, p := range all {
		claims = append(claims, ports.Claim{Protocol: "tcp", Port: p})
	}
	return claims
}

func rendered(holders []Holder) []string {
	all := []string{}
	for _, h := range holders {
		all = append(all, fmt.Sprintf("%s/%s %v", h.Record.ContainerID, h.Attachment.IfName, h.Claim))
	}
	slices.Sort(all)
	return all
}

// entered returns the names in the index.
func (h *host) entered() []string {
	h.t.Helper()
	names := []string{}
	entries, err := os.ReadDir(h.index.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		h.t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func nameOf(id, code string) string { return record.Name(record.ID(id)) + "." + code }

func TestEachRecordIsReadOnce(t *testing.T) {
	h := newHost(t)
	expect.Same(t, "without a directory", h.find(80), []string{})
	h.write(recordOf("c1", []uint16{80, 443}))
	h.write(recordOf("c2", nil))
	h.write(recordOf("c3", nil, []uint16{8080}))
	expect.Same(t, "a port of nobody", h.find(81), []string{})
	expect.Same(t, "reads", h.reads(), 3)
	expect.Same(t, "a port of c1", h.find(443), []string{"c1/eth0 tcp 443"})
	expect.Same(t, "reads", h.reads(), 1)
	expect.Same(t, "two ports", h.find(80, 8080), []string{"c1/eth0 tcp 80", "c3/eth1 tcp 8080"})
	expect.Same(t, "reads", h.reads(), 2)
	expect.Same(t, "a port of nobody", h.find(81), []string{})
	expect.Same(t, "reads", h.reads(), 0)

	h.index.Enter(h.write(recordOf("c4", []uint16{81})))
	expect.Same(t, "a port of another", h.find(80), []string{"c1/eth0 tcp 80"})
	expect.Same(t, "reads", h.reads(), 1)

	warm := recordOf("warm-1", nil)
	warm.Warm = true
	h.index.Enter(h.write(warm))
	expect.Same(t, "a port of nobody beside a pool's container", h.find(82), []string{})
	expect.Same(t, "reads", h.reads(), 0)
	expect.Same(t, "log", h.log.String(), "")
}

func TestARecordIsForgottenWithItsContainer(t *testing.T) {
	h := newHost(t)
	rec := h.write(recordOf("c1", []uint16{80}))
	h.index.Enter(rec)
	h.write(recordOf("c2", []uint16{81}))
	h.find(80)
	expect.Same(t, "entries", len(h.entered()), 2)
	expect.NoError(t, h.store.Delete("c1"))
	h.index.Forget(rec)
	expect.Same(t, "entries", h.entered(), []string{nameOf("c2", "t81")})
	h.index.Forget(rec) // it is no error if another did
	expect.NoError(t, h.store.Delete("c2"))
	strays, err := h.index.Strays()
	expect.NoError(t, err)
	expect.Same(t, "strays", strays, []string{filepath.Join(h.index.dir, nameOf("c2", "t81"))})
	expect.Same(t, "a port that was c2's", h.find(81), []string{})
	expect.Same(t, "entries", h.entered(), []string{})
}

// TestAContainerThatIsAttachedAgain has a new file, also if an earlier version, which
// knows no index, writes it: the inode of the old one is taken while the index has it.
func TestAContainerThatIsAttachedAgain(t *testing.T) {
	h := newHost(t)
	for i := range 50 {
		port := uint16(1000 + i)
		rec := h.write(recordOf("c1", []uint16{port}))
		if i%2 == 0 {
			h.index.Enter(rec)
		}
		expect.Same(t, "its port", h.find(port), []string{fmt.Sprintf("c1/eth0 tcp %d", port)})
		expect.Same(t, "its former port", h.find(port-1), []string{})
		if i%3 == 0 {
			rec.Attachments = append(rec.Attachments, recordOf("", nil, []uint16{port + 500}).Attachments[1])
			h.write(rec)
			expect.Same(t, "another port", h.find(port+500), []string{fmt.Sprintf("c1/eth1 tcp %d", port+500)})
		}
		expect.NoError(t, h.store.Delete("c1"))
	}
}

func TestOnlyPortsThatAreForwardedCount(t *testing.T) {
	h := newHost(t)
	deaf := recordOf("deaf", []uint16{80})
	deaf.Attachments[0].Config = []byte(`{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "bridge"}]}`)
	h.write(deaf)
	odd := recordOf("odd", []uint16{80})
	odd.Attachments[0].Config = []byte(`not JSON`)
	h.write(odd)
	gone := h.write(recordOf("gone", []uint16{80}, []uint16{80}))
	expect.NoError(t, h.store.Append(gone, record.Entry{IfName: "eth0", State: record.Deleted}))
	for range 2 {
		expect.Same(t, "holders", h.find(80), []string{"gone/eth1 tcp 80", "odd/eth0 tcp 80"})
	}
}

// TestRecordsThatCannotBeUsed count as far as they are legible, and are no reason to
// refuse all ports.
func TestRecordsThatCannotBeUsed(t *testing.T) {
	h := newHost(t)
	h.write(recordOf("good", []uint16{80}))
	h.write(recordOf("bad", []uint16{80}))
	h.write(recordOf("newer", []uint16{80}))
	spoil := func(id record.ID, change func(string) string) {
		path := h.store.Path(record.Name(id))
		data, err := os.ReadFile(path)
		expect.NoError(t, err)
		expect.NoError(t, os.WriteFile(path, []byte(change(string(data))), 0o600))
	}
	spoil("bad", func(s string) string { return strings.Replace(s, "boot", "toob", 1) })
	expect.NoError(t, os.Mkdir(h.store.Path(record.Name("unread")), 0o700))
	for range 2 {
		h.log.Reset()
		expect.Same(t, "holders", h.find(80), []string{"good/eth0 tcp 80", "newer/eth0 tcp 80"})
		if n := strings.Count(h.log.String(), "level=WARN"); n < 1 {
			t.Errorf("%d warnings:\n%s", n, h.log)
		}
	}
}

// TestWithoutHardLinks every record is read each time.
func TestWithoutHardLinks(t *testing.T) {
	h := newHost(t)
	h.write(recordOf("c1", []uint16{80}))
	expect.NoError(t, os.WriteFile(h.index.dir, nil, 0o600)) // no directory can be made there
	_, err := h.index.Find(claimsOf(80))
	if err == nil {
		t.Error("a file in the place of the index is no error")
	}
	expect.NoError(t, os.Remove(h.index.dir))
	other := t.TempDir() // of another file system
	expect.NoError(t, unix.Mount("tmpfs", other, "tmpfs", 0, ""))
	defer func() { expect.NoError(t, unix.Unmount(other, unix.MNT_DETACH)) }()
	h.index.dir = other
	for range 3 {
		expect.Same(t, "holders", h.find(80), []string{"c1/eth0 tcp 80"})
		expect.Same(t, "entries", h.entered(), []string{})
	}
	h.reads()
	h.find(81)
	expect.Same(t, "reads", h.reads(), 1)
}

// TestTheIndexIsThatOfTheRecords after any sequence of writers that know the index and
// earlier versions that do not, some of which are killed in between, and of readers.
// With a view and without one.
func TestTheIndexIsThatOfTheRecords(t *testing.T) {
	for _, most := range []int{0, 1_000} {
		t.Run(fmt.Sprint(most), func(t *testing.T) { testIndex(t, most) })
	}
}

func testIndex(t *testing.T, most int) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	h := newHost(t)
	h.index.most = most
	views := 0
	live := map[string]*record.Record{}
	found := 0
	for step := range 3_000 {
		id := fmt.Sprint("c", random.IntN(12))
		rec := live[id]
		switch what := random.IntN(8); {
		case what < 2 && rec == nil, what == 0:
			next := recordOf(id)
			if rec != nil { // attached under more names
				*next = *rec
			}
			var some []uint16
			for range random.IntN(3) {
				some = append(some, uint16(80+random.IntN(6)))
			}
			next.Attachments = append(slices.Clone(next.Attachments), recordOf(id, some).Attachments...)
			next.Attachments[len(next.Attachments)-1].IfName = fmt.Sprint("eth", len(next.Attachments))
			live[id] = h.write(next)
			if random.IntN(2) == 0 {
				h.index.Enter(next)
			}
		case what < 3 && rec != nil:
			expect.NoError(t, h.store.Delete(rec.ContainerID))
			delete(live, id)
			if random.IntN(2) == 0 {
				h.index.Forget(rec)
			}
		case what < 4 && rec != nil && len(rec.Attachments) > 0:
			n := &rec.Attachments[random.IntN(len(rec.Attachments))]
			expect.NoError(t, h.store.Append(rec, record.Entry{IfName: n.IfName, State: record.Deleted}))
			n.State = record.Deleted
		case what < 5:
			strays, err := h.index.Strays()
			expect.NoError(t, err)
			for _, path := range strays {
				expect.NoError(t, os.Remove(path))
			}
		default:
			wanted := claimsOf(uint16(80 + random.IntN(6)))
			want := []Holder{}
			for _, rec := range live {
				want = append(want, holdersIn(rec, wanted)...)
			}
			found += len(want)
			holders, err := h.index.Find(wanted)
			expect.NoError(t, err)
			if h.index.view != nil {
				views++
			}
			if got := rendered(holders); !slices.Equal(got, rendered(want)) {
				t.Fatalf("step %d: %v has %q, want %q", step, wanted, got, rendered(want))
			}
		}
	}
	if found < 500 || (views < 500) != (most > 0) {
		t.Errorf("%d holders in all, %d searches with a view, too few to show anything", found, views)
	}
}

// TestManyAtOnce: whatever happens at the same time, a record that is there all the
// time is found.
func TestManyAtOnce(t *testing.T) {
	for _, most := range []int{0, 1_000} {
		t.Run(fmt.Sprint(most), func(t *testing.T) { testManyAtOnce(t, most) })
	}
}

func testManyAtOnce(t *testing.T, most int) {
	h := newHost(t)
	h.index.most = most
	h.write(recordOf("stays", []uint16{80}))
	again := recordOf("again", []uint16{81})
	h.write(again)
	var wg sync.WaitGroup
	for i := range 4 {
		index := open(record.Open(h.store.Dir()), slog.New(slog.NewTextHandler(h.log, nil)), newState()) // of another process
		index.most = most
		wg.Add(1)
		go func() {
			defer wg.Done()
			for n := range 200 {
				port := uint16(100*(1+i) + n%7)
				rec := recordOf(fmt.Sprint("c", i), []uint16{port})
				if err := index.records.Begin(rec); err != nil {
					t.Error(err)
				}
				index.Enter(rec)
				holders, err := index.Find(claimsOf(80, port))
				if got := rendered(holders); err != nil || len(got) != 2 || got[1] != "stays/eth0 tcp 80" {
					t.Errorf("%q, %v", got, err)
				}
				if n%2 == 0 {
					if err := index.records.Delete(rec.ContainerID); err != nil {
						t.Error(err)
					}
					index.Forget(rec)
				}
			}
		}()
	}
	for range 200 { // a record that is replaced is never missing
		h.write(again)
		expect.Same(t, "again", h.find(81), []string{"again/eth0 tcp 81"})
	}
	wg.Wait()
}

// newFollowed returns a host whose index has a view.
func newFollowed(t *testing.T) *host {
	t.Helper()
	h := newHost(t)
	h.index.most = 0
	h.write(recordOf("first", []uint16{1}))
	h.find(1)
	h.find(1)
	if h.index.view == nil {
		t.Fatal("no view")
	}
	h.reads()
	return h
}

// TestAViewReadsOnlyWhatChanged: what others have written, and none of its own.
func TestAViewReadsOnlyWhatChanged(t *testing.T) {
	h := newFollowed(t)
	h.index.Enter(h.write(recordOf("own", []uint16{80})))
	h.index.Enter(h.write(recordOf("portless", nil)))
	expect.Same(t, "a port of nobody", h.find(81), []string{})
	expect.Same(t, "reads", h.reads(), 0)
	another := h.write(recordOf("another's", []uint16{81}))
	expect.Same(t, "another's port", h.find(81), []string{"another's/eth0 tcp 81"})
	expect.Same(t, "reads", h.reads(), 2)
	expect.NoError(t, h.store.Append(another, record.Entry{IfName: "eth0", State: record.Added}))
	expect.Same(t, "a port of nobody", h.find(82), []string{})
	expect.Same(t, "reads after an entry of the log", h.reads(), 0)
	h.write(recordOf("another's", []uint16{82})) // attached again
	expect.Same(t, "its former port", h.find(81), []string{})
	expect.Same(t, "its port", h.find(82), []string{"another's/eth0 tcp 82"})
	expect.NoError(t, h.store.Delete("another's"))
	expect.Same(t, "a port of one that is gone", h.find(82), []string{})
	expect.Same(t, "entries", h.entered(), []string{nameOf("own", "t80"), nameOf("first", "t1")})
}

// TestARangeInAView is found at its borders, narrow or wide.
func TestARangeInAView(t *testing.T) {
	h := newFollowed(t)
	var narrow, broad []uint16
	for p := range uint16(200) {
		narrow, broad = append(narrow, 1_000+p), append(broad, 2_000+2*p, 2_001+2*p)
	}
	h.index.Enter(h.write(recordOf("narrow", narrow)))
	h.index.Enter(h.write(recordOf("wide", broad)))
	for port, want := range map[uint16][]string{
		999: {}, 1_000: {"narrow/eth0 tcp 1000"}, 1_199: {"narrow/eth0 tcp 1199"}, 1_200: {},
		1_999: {}, 2_000: {"wide/eth0 tcp 2000"}, 2_399: {"wide/eth0 tcp 2399"}, 2_400: {},
	} {
		expect.Same(t, fmt.Sprint(port), h.find(port), want)
	}
	expect.NoError(t, h.store.Delete("narrow"))
	expect.NoError(t, h.store.Delete("wide"))
	expect.Same(t, "after both are gone", h.find(1_000, 2_000), []string{})
}

// TestADirectoryThatIsReplaced, or covered by a mount, of which nobody is told.
func TestADirectoryThatIsReplaced(t *testing.T) {
	for what, replace := range map[string]func(dir string) error{
		"renamed": func(dir string) error {
			return errors.Join(os.Rename(dir, dir+".old"), os.Mkdir(dir, 0o700))
		},
		"removed": func(dir string) error { return errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)) },
		"mounted": func(dir string) error { return unix.Mount("tmpfs", dir, "tmpfs", 0, "") },
	} {
		h := newFollowed(t)
		dir := h.store.Dir()
		expect.NoError(t, replace(dir))
		h.write(recordOf("second", []uint16{2}))
		expect.Same(t, what+": a port of the former directory", h.find(1), []string{})
		expect.Same(t, what+": a port of the new one", h.find(2), []string{"second/eth0 tcp 2"})
		if what == "mounted" {
			expect.NoError(t, unix.Unmount(dir, unix.MNT_DETACH))
			expect.Same(t, what+" no more", h.find(1), []string{"first/eth0 tcp 1"})
		}
	}
}

// TestWithoutAWatch all names are compared each time.
func TestWithoutAWatch(t *testing.T) {
	h := newHost(t)
	h.index.most = 0
	h.index.watch = func(string) (*dirwatch.Watch, error) { return nil, unix.EMFILE }
	h.write(recordOf("c1", []uint16{80}))
	for range 3 {
		expect.Same(t, "holders", h.find(80), []string{"c1/eth0 tcp 80"})
	}
	h.write(recordOf("c2", []uint16{81}))
	expect.Same(t, "holders", h.find(81), []string{"c2/eth0 tcp 81"})
}

// TestARecordThatCannotBeReadNow is read again by the next search.
func TestARecordThatCannotBeReadNow(t *testing.T) {
	h := newFollowed(t)
	read := h.store.Read
	h.store.Read = func(string) ([]byte, error) { return nil, unix.EIO }
	h.write(recordOf("c1", []uint16{80}))
	expect.Same(t, "while it cannot be read", h.find(80), []string{})
	h.store.Read = read
	expect.Same(t, "then", h.find(80), []string{"c1/eth0 tcp 80"})
}

// TestFreePorts are claimed by no record, with a view and without one, and each search goes
// on behind the last.
func TestFreePorts(t *testing.T) {
	for _, most := range []int{0, 1_000} {
		h := newHost(t)
		h.index.most, h.index.next = most, 4
		h.write(recordOf("c1", []uint16{7001, 7004}))
		h.write(recordOf("c2", []uint16{7003}))
		avoid := func(port uint16) bool { return port == 7005 }
		for i, want := range [][]uint16{{7006, 7000}, {7002, 7006}, {7000, 7002}} {
			free, err := h.index.Free([]string{"udp", "tcp"}, 7000, 7006, 2, avoid)
			expect.NoError(t, err)
			expect.Same(t, fmt.Sprint("search ", i), free, want)
		}
		free, err := h.index.Free([]string{"tcp"}, 7000, 7006, 4, avoid)
		expect.NoError(t, err)
		expect.Same(t, "more than there are", len(free), 3)
		free, err = h.index.Free([]string{"udp"}, 7001, 7001, 1, avoid)
		expect.NoError(t, err)
		expect.Same(t, "of another protocol", free, []uint16{7001})
	}
}

// TestWithinIsOfOneHost, and of one boot. The record's own container counts too.
func TestWithinIsOfOneHost(t *testing.T) {
	h := newHost(t)
	own := h.write(recordOf("own", []uint16{7000}))
	h.write(recordOf("other", []uint16{7001, 7009}))
	dead := recordOf("dead", []uint16{7002})
	dead.Boot = "another"
	h.write(dead)
	far := recordOf("far", []uint16{7003})
	far.Host = "elsewhere"
	h.write(far)
	holders, err := h.index.Within(own, []string{"tcp"}, 7000, 7005)
	expect.NoError(t, err)
	expect.Same(t, "holders", rendered(holders), []string{"other/eth0 tcp 7001", "own/eth0 tcp 7000"})
}

func TestDirentsAreReadToTheEnd(t *testing.T) {
	for _, data := range [][]byte{make([]byte, 5), make([]byte, 24), append(make([]byte, 16), 255, 255, 0, 0)} {
		if err := (&dirents{}).read(data); !errors.Is(err, unix.EIO) {
			t.Errorf("%v: %v", data, err)
		}
	}
}

// BenchmarkFind beside records of containers with a port each.
func BenchmarkFind(b *testing.B) {
	for _, n := range []int{10, 1_000, 3_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			h := newHost(b)
			for i := range n {
				h.write(recordOf(fmt.Sprint("c", i), []uint16{uint16(1_000 + i)}))
			}
			h.find(80)
			for b.Loop() {
				h.find(80)
			}
		})
	}
}

package ports

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/store/record"
)

// host is a directory of records with an index.
type host struct {
	t     testing.TB
	store *record.Store
	index *Index
	log   *bytes.Buffer
}

func newHost(t testing.TB) *host {
	h := &host{t: t, log: &bytes.Buffer{}}
	h.store = record.Open(filepath.Join(t.TempDir(), "attachments"))
	h.store.Sync = func(*os.File) error { return nil }
	h.index = Open(h.store, t.TempDir(), slog.New(slog.NewTextHandler(h.log, nil)))
	return h
}

// watched is a host with so many records that they are watched.
func watched(t testing.TB) *host {
	t.Helper()
	h := newHost(t)
	for i := range 10 {
		h.write(recordOf(fmt.Sprint("idle", i), nil))
	}
	for range 2 {
		expect.Same(t, "a port of nobody", h.find(9), []string{})
	}
	return h
}

// eachWay runs a test with a watch and without one.
func eachWay(t *testing.T, test func(t *testing.T, h *host)) {
	for name, host := range map[string]func(testing.TB) *host{"listed": newHost, "watched": watched} {
		t.Run(name, func(t *testing.T) { test(t, host(t)) })
	}
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
	return rendered(expect.Value(h.index.Find(claimsOf(wanted...)))(h.t))
}

func claimsOf(all ...uint16) (claims []Claim) {
	for _, p := range all {
		claims = append(claims, Claim{Protocol: "tcp", Port: p})
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
		expect.NoError(t, os.WriteFile(path, []byte(change(string(expect.Value(os.ReadFile(path))(t)))), 0o600))
	}
	spoil("bad", func(s string) string { return strings.Replace(s, "boot", "toob", 1) })
	expect.NoError(t, os.Mkdir(h.store.Path(record.Name("unread")), 0o700))
	for range 2 {
		h.log.Reset()
		expect.Same(t, "holders", h.find(80), []string{"good/eth0 tcp 80", "newer/eth0 tcp 80"})
		n := strings.Count(h.log.String(), "level=WARN")
		expect.That(t, n >= 1, "%d warnings:\n%s", n, h.log)
	}
}

// TestTheIndexIsThatOfTheRecords after any sequence of writers and readers.
func TestTheIndexIsThatOfTheRecords(t *testing.T) {
	eachWay(t, testIndex)
}

func testIndex(t *testing.T, h *host) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	live := map[string]*record.Record{}
	found := 0
	for step := range 3_000 {
		id := fmt.Sprint("c", random.IntN(12))
		rec := live[id]
		switch what := random.IntN(7); {
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
		case what < 3 && rec != nil:
			expect.NoError(t, h.store.Delete(rec.ContainerID))
			delete(live, id)
		case what < 4 && rec != nil && len(rec.Attachments) > 0:
			n := &rec.Attachments[random.IntN(len(rec.Attachments))]
			expect.NoError(t, h.store.Append(rec, record.Entry{IfName: n.IfName, State: record.Deleted}))
			n.State = record.Deleted
		default:
			wanted := claimsOf(uint16(80 + random.IntN(6)))
			want := []Holder{}
			for _, rec := range live {
				want = append(want, holdersIn(rec, wanted)...)
			}
			found += len(want)
			holders := expect.Value(h.index.Find(wanted))(t)
			if got := rendered(holders); !slices.Equal(got, rendered(want)) {
				t.Fatalf("step %d: %v has %q, want %q", step, wanted, got, rendered(want))
			}
		}
	}
	expect.That(t, found >= 500, "%d holders in all, too few to show anything", found)
}

// TestManyAtOnce: whatever happens at the same time, a record that is there all the
// time is found.
func TestManyAtOnce(t *testing.T) {
	eachWay(t, testManyAtOnce)
}

func testManyAtOnce(t *testing.T, h *host) {
	h.write(recordOf("stays", []uint16{80}))
	again := recordOf("again", []uint16{81})
	h.write(again)
	var wg sync.WaitGroup
	for i := range 4 {
		dir := h.store.Dir()
		index := &Index{records: record.Open(dir), logger: h.index.logger, state: dirs{records: dir}.watched()} // of another process
		wg.Go(func() {
			for n := range 200 {
				port := uint16(100*(1+i) + n%7)
				rec := recordOf(fmt.Sprint("c", i), []uint16{port})
				expect.Succeeds(t, "Begin", index.records.Begin(rec))
				holders, err := index.Find(claimsOf(80, port))
				got := rendered(holders)
				expect.That(t, err == nil && len(got) == 2 && got[1] == "stays/eth0 tcp 80", "%q, %v", got, err)
				if n%2 == 0 {
					expect.Succeeds(t, "Delete", index.records.Delete(rec.ContainerID))
				}
			}
		})
	}
	for range 200 { // a record that is replaced is never missing
		h.write(again)
		expect.Same(t, "again", h.find(81), []string{"again/eth0 tcp 81"})
	}
	wg.Wait()
}

// TestARecordThatCannotBeReadNow is read again by the next search.
func TestARecordThatCannotBeReadNow(t *testing.T) {
	eachWay(t, testUnread)
}

func testUnread(t *testing.T, h *host) {
	read := h.store.Read
	h.store.Read = func(string) ([]byte, error) { return nil, unix.EIO }
	h.write(recordOf("c1", []uint16{80}))
	expect.Same(t, "while it cannot be read", h.find(80), []string{})
	h.store.Read = read
	expect.Same(t, "then", h.find(80), []string{"c1/eth0 tcp 80"})
}

// TestFreePorts are claimed by no record, and each search goes on behind the last.
func TestFreePorts(t *testing.T) {
	eachWay(t, testFree)
}

func testFree(t *testing.T, h *host) {
	h.index.next = 4
	h.write(recordOf("c1", []uint16{7001, 7004}))
	h.write(recordOf("c2", []uint16{7003}))
	search := func(protocols []string, first, last uint16, n int) []uint16 {
		p := &Picked{Range: Range{First: first, Last: last}, Protocols: protocols, avoid: map[uint16]bool{7005: true}}
		return expect.Value(h.index.Free(p, n))(t)
	}
	for i, want := range [][]uint16{{7006, 7000}, {7002, 7006}, {7000, 7002}} {
		free := search([]string{"udp", "tcp"}, 7000, 7006, 2)
		expect.Same(t, fmt.Sprint("search ", i), free, want)
	}
	expect.Same(t, "more than there are", len(search([]string{"tcp"}, 7000, 7006, 4)), 3)
	expect.Same(t, "of another protocol", search([]string{"udp"}, 7001, 7001, 1), []uint16{7001})
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
	holders := expect.Value(h.index.Within(own, &Picked{Range: Range{First: 7000, Last: 7005}, Protocols: []string{"tcp"}}))(t)
	expect.Same(t, "holders", rendered(holders), []string{"other/eth0 tcp 7001", "own/eth0 tcp 7000"})
}

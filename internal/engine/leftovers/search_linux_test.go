package leftovers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/engine/container"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/plainfile"
	"github.com/embedcni/cni/internal/store/record"
)

const boot = "this boot"

// fake stands in for the runtime.
type fake struct {
	keepsNone bool
	tended    []record.ID
	tend      func(file string) (Step, error)
	log       bytes.Buffer
	Runtime
}

func newFake(t *testing.T, store *record.Store) *fake {
	t.Helper()
	f := &fake{}
	f.Runtime = Runtime{Owner: "tester", Boot: boot, Records: store, Logger: slog.New(slog.NewTextHandler(&f.log, nil)), Containers: f}
	return f
}

func (f *fake) Keeps(record.ID) bool { return !f.keepsNone }

func (f *fake) Tend(file string, host *container.Host) (Step, error) {
	defer host.Close()
	rec, err := f.Records.LoadFile(file)
	f.tended = append(f.tended, rec.ContainerID)
	if err == nil && f.tend != nil {
		return f.tend(file)
	}
	return Step{}, err
}

// look looks in the test's namespace.
func (f *fake) look(t *testing.T, s *Search) error {
	t.Helper()
	host := expect.Value(container.NewFinder().Open(""))(t)
	defer host.Close()
	return s.Look(f.Runtime, host)
}

// abandonedRecord is a record whose path leads nowhere.
func abandonedRecord(id record.ID) *record.Record {
	return &record.Record{
		ContainerID: id, Owner: "tester", Boot: boot,
		NetNS:       record.NetNS{Path: "/nowhere", Dev: 4, Ino: 4711, View: container.View()},
		Attachments: []record.Attachment{{Network: "net", IfName: "eth0", State: record.Added}},
	}
}

func begin(t *testing.T, s *record.Store, rec *record.Record) {
	t.Helper()
	expect.NoError(t, s.Begin(rec))
}

// TestIs: a container is abandoned only if nothing speaks against it.
func TestIs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	expect.NoError(t, os.WriteFile(file, nil, 0o600))
	id, _ := container.At(file)
	for what, test := range map[string]struct {
		change func(*record.Record)
		want   bool
	}{
		"abandoned":               {func(*record.Record) {}, true},
		"path leads there":        {func(r *record.Record) { r.NetNS.Path, r.NetNS.Dev, r.NetNS.Ino = file, id.Dev, id.Ino }, false},
		"path leads elsewhere":    {func(r *record.Record) { r.NetNS.Path = file }, true},
		"another boot":            {func(r *record.Record) { r.Boot = "another" }, false},
		"another view":            {func(r *record.Record) { r.NetNS.View += "0" }, false},
		"no view":                 {func(r *record.Record) { r.NetNS.View = "" }, false},
		"no identity":             {func(r *record.Record) { r.NetNS.Ino = 0 }, false},
		"made ahead of time":      {func(r *record.Record) { r.Warm = true }, false},
		"a pool's":                {func(r *record.Record) { r.NetNS.Ours = true }, false},
		"another owner's":         {func(r *record.Record) { r.Owner = "another" }, false},
		"another owner's as well": {func(r *record.Record) { r.Attachments = append(r.Attachments, record.Attachment{Owner: "another"}) }, false},
		"was another owner's": {func(r *record.Record) {
			r.Attachments = append(r.Attachments, record.Attachment{Owner: "another", State: record.Deleted})
		}, true},
		"nothing attached any more": {func(r *record.Record) { r.Attachments[0].State = record.Deleted }, false},
	} {
		rec := abandonedRecord("c1")
		test.change(rec)
		expect.Same(t, what, isAbandoned(container.View(), rec, "tester", boot), test.want)
	}
	if rec := abandonedRecord("c1"); isAbandoned("", rec, "tester", boot) {
		t.Error("the view is not known")
	}
	rec := abandonedRecord("c1")
	rec.Boot = ""
	expect.That(t, !isAbandoned(container.View(), rec, "tester", ""), "the boot is not known")
}

// TestALookTendsAbandonedContainers among many records, and skips none.
func TestALookTendsAbandonedContainers(t *testing.T) {
	store := record.Open(t.TempDir())
	store.Sync = func(*os.File) error { return nil }
	var want []record.ID
	for i := range 300 {
		rec := abandonedRecord(record.ID(fmt.Sprint("c", i)))
		if i%100 == 0 {
			want = append(want, rec.ContainerID)
		} else {
			rec.Owner = "another"
		}
		begin(t, store, rec)
	}
	f := newFake(t, store)
	err := f.look(t, SearchOf(""))
	slices.Sort(f.tended)
	expect.That(t, err == nil && slices.Equal(f.tended, want), "tended %q, want %q: %v", f.tended, want, err)
}

// TestAStayingContainerIsReportedOnce for each generation of the record. A failure is
// retried in each look.
func TestAStayingContainerIsReportedOnce(t *testing.T) {
	store := record.Open(t.TempDir())
	rec := abandonedRecord("c1")
	begin(t, store, rec)
	f, s := newFake(t, store), SearchOf("")
	looks := func(n int) {
		for range n {
			expect.NoError(t, f.look(t, s))
		}
	}
	f.tend = func(string) (Step, error) { return Step{}, &NoEndError{"net", "nobody knows"} }
	looks(3)
	n := strings.Count(f.log.String(), "stays as it is")
	expect.That(t, n == 1 && len(f.tended) == 1, "reported %d times, tended %d times:\n%s", n, len(f.tended), &f.log)
	expect.NoError(t, store.Delete("c1"))
	looks(1)
	expect.That(t, len(s.reported) == 0, "reports are kept without a record: %v", s.reported)
	begin(t, store, rec)
	f.tend = func(string) (Step, error) { return Step{}, errors.New("not now") }
	looks(3)
	n = strings.Count(f.log.String(), "left for later")
	expect.That(t, n == 3 && len(f.tended) == 4, "reported %d times, tended %d times:\n%s", n, len(f.tended), &f.log)
	f.tend = func(string) (Step, error) { panic("oops") }
	looks(1)
	expect.That(t, strings.Contains(f.log.String(), "panic: oops"), "no panic in the log:\n%s", &f.log)
}

// TestTheLastRequestDecides which configuration a look uses.
func TestTheLastRequestDecides(t *testing.T) {
	store := record.Open(t.TempDir())
	begin(t, store, abandonedRecord("c1"))
	before, after := newFake(t, store), newFake(t, store)
	host := expect.Value(container.NewFinder().Open(""))(t)
	defer host.Close()
	s := SearchOf("")
	s.next = time.Now().Add(50 * time.Millisecond)
	s.Request(before.Runtime, host, true)
	done := make(chan struct{})
	after.tend = func(string) (Step, error) { close(done); return Step{}, nil }
	s.Request(after.Runtime, host, false)
	expect.Await(t, "a container that is tended", done)
	expect.That(t, len(before.tended) == 0, "with the previous configuration")
}

// idle reports whether a request would start a look at once.
func (s *Search) idle() bool {
	if !s.looking.TryLock() {
		return false
	}
	defer s.looking.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.waiting
}

// TestSearchesThatAreAlikeReadOnce: many Runtimes that ask at once have the records read
// twice, since the first look may have begun before the last has asked.
func TestSearchesThatAreAlikeReadOnce(t *testing.T) {
	const records, runtimes = 20, 100
	store := record.Open(t.TempDir())
	store.Sync = func(*os.File) error { return nil }
	for i := range records {
		rec := abandonedRecord(record.ID(fmt.Sprint("c", i)))
		rec.Owner = "another"
		begin(t, store, rec)
	}
	var reads atomic.Int64
	store.Read = func(path string) ([]byte, error) {
		reads.Add(1)
		return plainfile.Read(path)
	}
	host := expect.Value(container.NewFinder().Open(""))(t)
	defer host.Close()
	like := store.Dir()
	var searches []*Search
	for range runtimes {
		s := SearchOf(like)
		s.Request(newFake(t, store).Runtime, host, true)
		searches = append(searches, s)
	}
	expect.Eventually(t, "the end of the looks", searches[0].idle)
	n := reads.Load()
	expect.That(t, n >= records && n <= 2*records, "%d records were read %d times", records, n)
	s := searches[0]
	s.mu.Lock()
	defer s.mu.Unlock()
	expect.That(t, s.asked == nil && s.runtime.Containers == nil, "Runtimes are kept after the last look: %v, %v", s.asked, s.runtime)
	expect.That(t, SearchOf(like+"\x00/elsewhere") != s && SearchOf("") != s, "Searches that are not alike have one in common")
}

// TestWhoeverKeepsANamespaceLetsItGo: of two Runtimes that search together, one has the
// namespace of an abandoned container open.
func TestWhoeverKeepsANamespaceLetsItGo(t *testing.T) {
	store := record.Open(t.TempDir())
	host := expect.Value(container.NewFinder().Open(""))(t)
	defer host.Close()
	rec := abandonedRecord("c1")
	rec.Host = host.String()
	begin(t, store, rec)
	if err := store.Append(rec, record.Entry{LetGo: &record.LetGo{Ends: []int{1}}}); err != nil { // lo, which lasts
		t.Fatal(err)
	}
	keeper, newer := newFake(t, store), newFake(t, store)
	newer.keepsNone = true
	s := SearchOf("")
	s.next = time.Now().Add(50 * time.Millisecond)
	s.Request(keeper.Runtime, host, true)
	s.Request(newer.Runtime, host, true)
	expect.Eventually(t, "the end of the looks", s.idle)
	expect.That(t, slices.Equal(keeper.tended, []record.ID{"c1"}) && len(newer.tended) == 0,
		"the keeper tended %q, and the other %q", keeper.tended, newer.tended)
}

// TestRequests: no look begins before the first Setup. Each request causes a look if none
// is waiting.
func TestRequests(t *testing.T) {
	host := expect.Value(container.NewFinder().Open(""))(t)
	defer host.Close()
	f, s := newFake(t, record.Open(t.TempDir())), SearchOf("")
	for n, want := range [][]bool{{false, true, true}, {true, true, true}} {
		s.looking.Lock() // as during a look
		for i, setup := range []bool{false, true, false} {
			s.Request(f.Runtime, host, setup)
			expect.Same(t, fmt.Sprintf("after request %d of look %d, waits", i, n), s.waiting, want[i])
		}
		s.looking.Unlock()
		expect.Eventually(t, "the end of the look", s.idle)
	}
}

// TestPauses between looks grow with the time that a look took, within limits.
func TestPauses(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		time.Microsecond: shortestRest, 200 * time.Millisecond: time.Second, time.Hour: longestRest,
	} {
		expect.Same(t, took.String(), restAfter(took), want)
	}
}

// TestAStuckContainerHoldsUpNoLook: a look does not wait for a container that hangs.
func TestAStuckContainerHoldsUpNoLook(t *testing.T) {
	store := record.Open(t.TempDir())
	begin(t, store, abandonedRecord("c1"))
	f, hangs := newFake(t, store), make(chan struct{})
	f.tend = func(string) (Step, error) { <-hangs; return Step{}, nil }
	s := SearchOf("")
	ctx, cancel := context.WithTimeout(t.Context(), 10*stuckFor)
	defer cancel()
	err := f.look(t, s)
	expect.Must(t, err == nil && ctx.Err() == nil, "the look waits: %v, %v", err, ctx.Err())
	expect.Same(t, "stuck", s.stuck.Load(), 1)
	close(hangs)
	expect.Eventually(t, "the end of what was stuck", func() bool { return s.stuck.Load() == 0 })
}

package abandoned

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

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/nsfind"
	"github.com/embedcni/cni/internal/plainfile"
	"github.com/embedcni/cni/internal/record"
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

func (f *fake) Tend(file string, _ *hostns.NetNS) (Step, error) {
	rec, err := f.Records.LoadFile(file)
	f.tended = append(f.tended, rec.ContainerID)
	if err == nil && f.tend != nil {
		return f.tend(file)
	}
	return Step{}, err
}

// round runs a round in the test's namespace.
func (f *fake) round(t *testing.T, s *Search) error {
	t.Helper()
	host, err := hostns.NewFinder().Open("")
	expect.NoError(t, err)
	defer host.Close()
	return s.Round(t.Context(), f.Runtime, host)
}

// abandonedRecord is a record whose path leads nowhere.
func abandonedRecord(id record.ID) *record.Record {
	return &record.Record{
		ContainerID: id, Owner: "tester", Boot: boot,
		NetNS:       record.NetNS{Path: "/nowhere", Dev: 4, Ino: 4711, View: nsfind.View()},
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
	id, _ := nsfind.At(file)
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
		if got := isFrom(nsfind.View(), rec, "tester", boot); got != test.want {
			t.Errorf("%s: got %v", what, got)
		}
	}
	if rec := abandonedRecord("c1"); isFrom("", rec, "tester", boot) {
		t.Error("the view is not known")
	}
	rec := abandonedRecord("c1")
	if rec.Boot = ""; isFrom(nsfind.View(), rec, "tester", "") {
		t.Error("the boot is not known")
	}
}

// TestARoundTendsAbandonedContainers among many records, and skips none.
func TestARoundTendsAbandonedContainers(t *testing.T) {
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
	err := f.round(t, New())
	slices.Sort(f.tended)
	if err != nil || !slices.Equal(f.tended, want) {
		t.Errorf("tended %q, want %q: %v", f.tended, want, err)
	}
}

// TestAStayingContainerIsReportedOnce for each generation of the record. A failure is
// retried in each round.
func TestAStayingContainerIsReportedOnce(t *testing.T) {
	store := record.Open(t.TempDir())
	rec := abandonedRecord("c1")
	begin(t, store, rec)
	f, s := newFake(t, store), New()
	rounds := func(n int) {
		for range n {
			if err := f.round(t, s); err != nil {
				t.Fatal(err)
			}
		}
	}
	f.tend = func(string) (Step, error) { return Step{}, &NoEndError{"net", "nobody knows"} }
	rounds(3)
	if n := strings.Count(f.log.String(), "stays as it is"); n != 1 || len(f.tended) != 1 {
		t.Errorf("reported %d times, tended %d times:\n%s", n, len(f.tended), &f.log)
	}
	expect.NoError(t, store.Delete("c1"))
	rounds(1)
	if len(s.rounds.reported) > 0 {
		t.Errorf("reports are kept without a record: %v", s.rounds.reported)
	}
	begin(t, store, rec)
	f.tend = func(string) (Step, error) { return Step{}, errors.New("not now") }
	rounds(3)
	if n := strings.Count(f.log.String(), "left for later"); n != 3 || len(f.tended) != 4 {
		t.Errorf("reported %d times, tended %d times:\n%s", n, len(f.tended), &f.log)
	}
	f.tend = func(string) (Step, error) { panic("oops") }
	rounds(1)
	if !strings.Contains(f.log.String(), "panic: oops") {
		t.Errorf("no panic in the log:\n%s", &f.log)
	}
}

// TestTheLastRequestDecides which configuration a round uses.
func TestTheLastRequestDecides(t *testing.T) {
	store := record.Open(t.TempDir())
	begin(t, store, abandonedRecord("c1"))
	before, after := newFake(t, store), newFake(t, store)
	host, err := hostns.NewFinder().Open("")
	expect.NoError(t, err)
	defer host.Close()
	s := New()
	s.rounds.next = time.Now().Add(50 * time.Millisecond)
	s.Request(before.Runtime, host, true)
	done := make(chan struct{})
	after.tend = func(string) (Step, error) { close(done); return Step{}, nil }
	s.Request(after.Runtime, host, false)
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("nothing is tended")
	}
	if len(before.tended) > 0 {
		t.Error("with the previous configuration")
	}
}

// TestSearchesThatAreAlikeReadOnce: many Runtimes that ask at once have the records read
// twice, since the first round may have begun before the last has asked.
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
	host, err := hostns.NewFinder().Open("")
	expect.NoError(t, err)
	defer host.Close()
	like := Alike{Dir: store.Dir(), Owner: "tester", Boot: boot}
	var searches []*Search
	for range runtimes {
		s := Open(like)
		s.Request(newFake(t, store).Runtime, host, true)
		searches = append(searches, s)
	}
	expect.Eventually(t, "the end of the rounds", searches[0].idle)
	if n := reads.Load(); n < records || n > 2*records {
		t.Errorf("%d records were read %d times", records, n)
	}
	s := searches[0]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked != nil || s.runtime.Containers != nil {
		t.Errorf("Runtimes are kept after the last round: %v, %v", s.asked, s.runtime)
	}
	like.Host = "/elsewhere"
	if Open(like).rounds == s.rounds || New().rounds == s.rounds {
		t.Error("Searches that are not alike have one in common")
	}
}

// TestWhoeverKeepsANamespaceLetsItGo: of two Runtimes that search together, one has the
// namespace of an abandoned container open.
func TestWhoeverKeepsANamespaceLetsItGo(t *testing.T) {
	store := record.Open(t.TempDir())
	host, err := hostns.NewFinder().Open("")
	expect.NoError(t, err)
	defer host.Close()
	rec := abandonedRecord("c1")
	rec.Host = host.String()
	begin(t, store, rec)
	if err := store.Append(rec, record.Entry{LetGo: &record.LetGo{Ends: []int{1}}}); err != nil { // lo, which lasts
		t.Fatal(err)
	}
	keeper, newer := newFake(t, store), newFake(t, store)
	newer.keepsNone = true
	s := New()
	s.next = time.Now().Add(50 * time.Millisecond)
	s.Request(keeper.Runtime, host, true)
	s.Request(newer.Runtime, host, true)
	expect.Eventually(t, "the end of the rounds", s.idle)
	if !slices.Equal(keeper.tended, []record.ID{"c1"}) || len(newer.tended) > 0 {
		t.Errorf("the keeper tended %q, and the other %q", keeper.tended, newer.tended)
	}
}

// TestRequests: no round runs before the first Setup. Each request causes a
// round if none is waiting. After a failure no round runs until the next
// request.
func TestRequests(t *testing.T) {
	var r rounds
	ask := func(setup bool) bool { _, yes := r.want(Runtime{}, setup); return yes }
	end := func(failed bool) bool { r.begin(); _, yes := r.more(0, failed); return yes }
	steps := []bool{ask(false), ask(true), ask(false), end(false), ask(false)}
	r.begin()
	steps = append(steps, ask(false)) // during a round
	_, yes := r.more(0, false)
	steps = append(steps, yes, end(true), ask(false))
	if want := []bool{false, true, false, false, true, false, true, false, true}; !slices.Equal(steps, want) {
		t.Errorf("got %v, want %v", steps, want)
	}
}

// TestPauses between rounds grow with the time of reading, within limits.
func TestPauses(t *testing.T) {
	for what, test := range map[string]struct {
		read  time.Duration
		stuck int
		want  time.Duration
	}{
		"little was read": {time.Microsecond, 0, shortestRest},
		"much was read":   {20 * time.Millisecond, 0, 2 * time.Second},
		"a hung disk":     {time.Hour, 0, longestRest},
		"clogged":         {0, mostStuck, stuckFor},
	} {
		r := &rounds{stuck: test.stuck}
		if wait, _ := r.more(test.read, false); wait != test.want {
			t.Errorf("%s: %v", what, wait)
		}
	}
}

// TestAStuckContainerHoldsUpNoRound: a round does not wait for a container that
// hangs.
func TestAStuckContainerHoldsUpNoRound(t *testing.T) {
	store := record.Open(t.TempDir())
	begin(t, store, abandonedRecord("c1"))
	f, hangs := newFake(t, store), make(chan struct{})
	f.tend = func(string) (Step, error) { <-hangs; return Step{}, nil }
	s := New()
	ctx, cancel := context.WithTimeout(t.Context(), 10*stuckFor)
	defer cancel()
	if err := f.round(t, s); err != nil || ctx.Err() != nil {
		t.Fatalf("the round waits: %v, %v", err, ctx.Err())
	}
	if s.rounds.mu.Lock(); s.rounds.stuck != 1 {
		t.Errorf("%d are stuck", s.rounds.stuck)
	}
	s.rounds.mu.Unlock()
	close(hangs)
	for s.rounds.mu.Lock(); s.rounds.stuck > 0 && ctx.Err() == nil; s.rounds.mu.Lock() {
		s.rounds.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
	s.rounds.mu.Unlock()
	if ctx.Err() != nil {
		t.Error("it stays stuck")
	}
}

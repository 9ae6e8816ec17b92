package guard

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
)

// fakeHost is a host of containers that each have a link, which may be lost.
type fakeHost struct {
	mu       sync.Mutex
	lost     map[string]bool
	held     map[string]bool
	unread   error // of Refresh and Interfaces
	unlooked error // of Look
	fails    map[string]error
	looks    int
	panics   bool
	shared   bool // whoever is repaired, all are
	repairs  int
	groups   []int         // the sizes of what was repaired together
	hanging  chan struct{} // a Repair waits for it, or for its context
}

func (h *fakeHost) Refresh(context.Context) ([]Container, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []Container
	for id := range h.lost {
		all = append(all, Container{id, true, []Sign{OfLink("veth" + id)}})
	}
	return all, h.unread
}

func (h *fakeHost) Interfaces(context.Context) ([]Link, []Port, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []Link
	for id, lost := range h.lost {
		all = append(all, Link{Index: int(id[0]), Name: "veth" + id, Up: !lost})
	}
	return all, nil, h.unread
}

func (h *fakeHost) found(id string) Found {
	return Found{Item: Item{Container: id, Object: "veth" + id}, Class: Links, Fixable: true, Held: h.held[id]}
}

func (h *fakeHost) Look(_ context.Context, whole bool, containers []string) (map[string]Verdict, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.looks++
	if h.unlooked != nil {
		return nil, h.unlooked
	}
	all := make(map[string]Verdict)
	for id, lost := range h.lost {
		if lost && (whole || slices.Contains(containers, id)) {
			all[id] = Verdict{Found: []Found{h.found(id)}}
		}
	}
	return all, nil
}

// group is the number of containers that a fakeHost repairs together.
const group = 16

func (h *fakeHost) Repair(ctx context.Context, ids []string, want func(Found) bool) map[string]Repaired {
	all := make(map[string]Repaired)
	for _, id := range ids[:min(len(ids), group)] {
		o, err := h.repair(ctx, id, want)
		all[id] = Repaired{Outcome: o, Err: err, Busy: errors.Is(err, errBusy)}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.groups = append(h.groups, len(all))
	return all
}

func (h *fakeHost) repair(ctx context.Context, id string, want func(Found) bool) (o Outcome, err error) {
	if h.hanging != nil {
		select {
		case <-h.hanging:
		case <-ctx.Done():
			return o, context.Cause(ctx)
		}
	}
	h.mu.Lock()
	f := h.found(id)
	h.mu.Unlock()
	wanted := want(f)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.panics {
		h.panics = false
		panic("in a repair")
	}
	if err := h.fails[id]; err != nil {
		return o, err
	}
	h.repairs++
	if wanted && h.lost[id] {
		for other := range h.lost {
			h.lost[other] = h.lost[other] && other != id && !h.shared
		}
		o.Made = append(o.Made, f)
	}
	return o, nil
}

func (h *fakeHost) lose(ids ...string) (events []Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, id := range ids {
		h.lost[id] = true
		events = append(events, Event{Link: &Link{Index: int(id[0]), Name: "veth" + id}})
	}
	return events
}

// guarded is a running guard of a fakeHost.
type guarded struct {
	*fakeHost
	events  chan Event
	reports chan string
	cancel  context.CancelFunc
	done    chan error
}

func newFakeHost() *fakeHost {
	return &fakeHost{lost: map[string]bool{"a": false, "b": false, "c": false}, held: map[string]bool{}, fails: map[string]error{}}
}

// begin runs a guard. Its reports are lines.
func begin(t *testing.T, h *fakeHost, change func(*Guard)) *guarded {
	t.Helper()
	before := runtime.NumGoroutine()
	g := &guarded{fakeHost: h, events: make(chan Event), reports: make(chan string, 1000), done: make(chan error, 1)}
	guard := &Guard{Host: h, Classes: All, Now: time.Now, Sources: []Source{func(ctx context.Context, emit func(Event)) error {
		for {
			select {
			case e := <-g.events:
				emit(e)
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}}, Report: func(r Report, d Decision) {
		g.reports <- strings.TrimSpace(fmt.Sprintln([]string{"begun", "looked", "mended", "left", "failed"}[r.Kind], r.Found.Container+r.Container, d, r.Err != nil))
	}}
	if change != nil {
		change(guard)
	}
	ctx, cancel := context.WithCancel(context.Background())
	g.cancel = cancel
	go func() { g.done <- guard.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		for end := time.Now().Add(expect.Patience); runtime.NumGoroutine() > before; {
			if time.Now().After(end) {
				stacks := make([]byte, 1<<20)
				t.Fatalf("left running:\n%s", stacks[:runtime.Stack(stacks, true)])
			}
			runtime.Gosched()
		}
	})
	return g
}

// until returns the reports up to the one that begins so.
func (g *guarded) until(t *testing.T, prefix string) (all []string) {
	t.Helper()
	timeout := time.After(expect.Patience)
	for {
		select {
		case line := <-g.reports:
			all = append(all, line)
			if strings.HasPrefix(line, prefix) {
				return all
			}
		case <-timeout:
			t.Fatalf("no report %q after %q", prefix, all)
		}
	}
}

func (g *guarded) end(t *testing.T) {
	t.Helper()
	g.cancel()
	if err := <-g.done; err != nil {
		t.Errorf("ended with %v", err)
	}
}

func TestGuardRepairsWhatIsLost(t *testing.T) {
	h := newFakeHost()
	h.lost["a"] = true // before anybody listens
	g := begin(t, h, nil)
	expect.Same(t, "at the begin", g.until(t, "mended"), []string{"begun   false", "looked   false", "mended a repair false"})
	for _, e := range g.lose("b") {
		g.events <- e
	}
	expect.Same(t, "a loss", g.until(t, "mended"), []string{"looked   false", "mended b repair false"})
	g.lose("c") // no event announced it
	g.events <- Event{Lost: Links}
	g.until(t, "mended c")
	g.end(t)
}

// TestGuardLooksAgainInBetween: what all containers share is repaired for one of them,
// and the others are not locked for it.
func TestGuardLooksAgainInBetween(t *testing.T) {
	h := newFakeHost()
	const containers = 10 * group
	for n := range containers {
		h.lost[fmt.Sprint("n", n)] = true
	}
	h.shared = true
	g := begin(t, h, nil)
	g.until(t, "mended")
	g.events <- Event{Lost: Links}
	g.until(t, "looked")
	g.end(t)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.repairs > group {
		t.Errorf("%d of %d containers were locked for one shared thing", h.repairs, containers)
	}
	if h.looks > 4 {
		t.Errorf("looked %d times", h.looks)
	}
}

var errBusy = errors.New("busy")

// TestGuardLeavesBusyContainersOut: the others are repaired, a busy one later, and at
// first nothing is said of it.
func TestGuardLeavesBusyContainersOut(t *testing.T) {
	for _, long := range []bool{false, true} {
		h := newFakeHost()
		h.fails["b"] = fmt.Errorf("container b: %w", errBusy)
		g := begin(t, h, nil)
		g.until(t, "looked")
		for _, e := range g.lose("a", "b", "c") {
			g.events <- e
		}
		var mended []string
		for len(mended) < 2 {
			all := g.until(t, "mended")
			for _, line := range all {
				if strings.HasPrefix(line, "failed") {
					t.Errorf("got %q", all)
				}
			}
			mended = append(mended, all[len(all)-1])
		}
		slices.Sort(mended)
		expect.Same(t, "mended", mended, []string{"mended a repair false", "mended c repair false"})
		if long {
			g.until(t, "failed b")
		}
		h.mu.Lock()
		delete(h.fails, "b")
		h.mu.Unlock()
		g.until(t, "mended b")
		g.end(t)
	}
}

// TestGuardRepairsWhatHasFailedByItself, after the others.
func TestGuardRepairsWhatHasFailedByItself(t *testing.T) {
	h := newFakeHost()
	h.fails["a"], h.fails["b"] = errors.New("no repair"), errors.New("no repair")
	h.lost["a"], h.lost["b"], h.lost["c"] = true, true, true
	g := begin(t, h, nil)
	for range 4 {
		g.until(t, "failed")
	}
	h.mu.Lock()
	clear(h.fails)
	h.mu.Unlock()
	g.until(t, "mended")
	g.until(t, "mended")
	g.end(t)
	h.mu.Lock()
	defer h.mu.Unlock()
	expect.Same(t, "the first group", h.groups[0], 3)
	for _, n := range h.groups[1:] {
		expect.Same(t, "a later group", n, 1)
	}
}

func TestGuardLeavesWhatIsHeld(t *testing.T) {
	h := newFakeHost()
	h.held["b"] = true
	g := begin(t, h, nil)
	g.until(t, "looked")
	for _, e := range g.lose("a", "b") {
		g.events <- e
	}
	all := append(g.until(t, "mended"), "")
	if !slices.Contains(all, "left b held false") {
		t.Errorf("got %q", all)
	}
	h.mu.Lock()
	delete(h.held, "b")
	h.mu.Unlock()
	g.events <- Event{Holds: true}
	g.until(t, "mended b")
	g.end(t)
}

// TestGuardGoesOn: nothing that fails ends the guard.
func TestGuardGoesOn(t *testing.T) {
	h := newFakeHost()
	h.unlooked = errors.New("no look")
	g := begin(t, h, nil)
	g.until(t, "failed")
	h.mu.Lock()
	h.unlooked = nil
	h.mu.Unlock()
	g.until(t, "looked")
	h.mu.Lock()
	h.unread, h.fails["a"], h.panics = errors.New("no record"), errors.New("no repair"), true
	h.mu.Unlock()
	for _, e := range g.lose("a", "b") {
		g.events <- e
	}
	g.until(t, "failed")
	h.mu.Lock()
	h.unread, h.fails["a"] = nil, nil
	h.mu.Unlock()
	var mended []string
	for len(mended) < 2 {
		all := g.until(t, "mended")
		mended = append(mended, all[len(all)-1])
	}
	slices.Sort(mended)
	expect.Same(t, "mended", mended, []string{"mended a repair false", "mended b repair false"})
	g.end(t)
}

// TestGuardEnds: with its context at once, and with a source that has ended.
func TestGuardEnds(t *testing.T) {
	h := newFakeHost()
	h.lost["a"], h.hanging = true, make(chan struct{})
	g := begin(t, h, nil)
	g.until(t, "looked")
	g.end(t)

	for what, source := range map[string]Source{
		"an error": func(context.Context, func(Event)) error { return errors.New("deaf") },
		"a panic":  func(context.Context, func(Event)) error { panic("deaf") },
	} {
		g := begin(t, newFakeHost(), func(g *Guard) { g.Sources = append(g.Sources, source) })
		if err := <-g.done; err == nil || !strings.Contains(err.Error(), "deaf") {
			t.Errorf("%s: %v", what, err)
		}
	}
	broken := newFakeHost()
	broken.unread = errors.New("no record")
	g = begin(t, broken, nil)
	if err := <-g.done; !errors.Is(err, broken.unread) {
		t.Errorf("without records: %v", err)
	}
}

// TestGuardDoesJobs: at their interval, after a panic too.
func TestGuardDoesJobs(t *testing.T) {
	done := make(chan int, 100)
	n := 0
	g := begin(t, newFakeHost(), func(g *Guard) {
		g.Jobs = []Job{{Every: time.Millisecond, Do: func(_ context.Context, emit func(Event)) {
			n++
			done <- n
			if n == 2 {
				panic("in a job")
			}
			emit(Event{Link: &Link{Index: 1000, Name: "other"}})
		}}}
	})
	for want := 1; want <= 4; want++ {
		if got := <-done; got != want {
			t.Fatalf("job %d, want %d", got, want)
		}
	}
	g.until(t, "failed")
	g.cancel()
	for {
		select {
		case <-done:
			continue
		case err := <-g.done:
			if err != nil {
				t.Error(err)
			}
			return
		}
	}
}

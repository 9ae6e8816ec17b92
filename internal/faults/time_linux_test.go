package faults_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
)

// deadline is M7: a plugin hangs, its child holds its output open, and the
// context ends.
func (b *board) deadline(t *testing.T) {
	limit := 300 * time.Millisecond
	if *costRounds < strictRounds { // an everyday run, beside other tests
		limit = 2 * time.Second
	}
	s := b.subject(t, 7<<32, 1)
	var worst time.Duration
	survivors := 0
	for i, at := range []string{"before", "after"} {
		for j, plugin := range chain() {
			id := fmt.Sprintf("m7-%d-%d", i, j)
			path := s.container(id)
			s.spoil(plugin, fault{Verb: "ADD", Hang: true, Fork: true, At: at})
			// The time to undo a healthy ADD does not count as the plugin's
			// overshoot.
			over := s.overshoot(id, path, limit)
			worst = max(worst, over)
			survivors += len(processesOf(t, id))
			s.remove(fmt.Sprintf("%s: %s hangs %s the real one", id, plugin, at), id)
		}
	}
	b.figure(t, "M7", "time past a deadline", fmt.Sprintf("%v, %d survivors", worst.Round(time.Millisecond), survivors),
		"500ms, 0 survivors", (worst <= 500*time.Millisecond || *costRounds < strictRounds) && survivors == 0)
}

// overshoot returns the time that the plugin's call continues after the end of
// the context. The roll-back follows it.
func (s *subject) overshoot(id, path string, limit time.Duration) time.Duration {
	s.t.Helper()
	var mu sync.Mutex
	var ended time.Time
	set := s.settings(1)
	r := s.host.runtime(set)
	expect.NoError(s.t, r.Load(cni.WithObserver(func(_ context.Context, e cni.Event) {
		mu.Lock()
		defer mu.Unlock()
		if e.Operation == "ADD" && e.Err != nil {
			ended = time.Now()
		}
	}), cni.WithConfListBytes(set.Confs[0])))
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	end, _ := ctx.Deadline()
	expect.Is(s.t, expect.Err(r.Setup(ctx, id, path, ports(10000)...)), context.DeadlineExceeded)
	mu.Lock()
	defer mu.Unlock()
	if ended.IsZero() {
		s.t.Errorf("%s: no plugin ran at the deadline", id)
	}
	return ended.Sub(end)
}

// unrelated is M8: calls that are unrelated to a hanging plugin.
func (b *board) unrelated(t *testing.T) {
	s := b.subject(t, 8<<32, 1)
	path := s.container("m8")
	s.spoil("bridge", fault{Verb: "ADD", Hang: true, At: "before"})
	ctx, cancel := context.WithCancel(context.Background())
	set := s.settings(1)
	r := s.host.runtime(set)
	done := make(chan error, 1)
	go func() {
		_, err := r.Setup(ctx, "m8", path)
		done <- err
	}()
	for len(processesOf(t, "m8")) == 0 { // until the plugin runs; each check reads all of /proc
		if len(done) > 0 {
			t.Fatal("Setup did not wait for a plugin that hangs: ", <-done)
		}
	}
	var took []time.Duration
	for range 50 {
		start := time.Now()
		expect.NoError(t, r.Status())
		expect.Same(t, "loaded networks", len(r.GetConfig().Networks), 1)
		expect.NoError(t, r.Load(cni.WithConfListBytes(set.Confs[0])))
		took = append(took, time.Since(start))
	}
	cancel()
	expect.Fails(t, "Setup succeeded with a plugin that hangs", <-done)
	s.remove("m8", "m8")
	worst := median(took)
	b.figure(t, "M8", "unrelated calls behind a hung plugin", fmt.Sprint(worst.Round(time.Microsecond), " (three calls, median of 50)"),
		"5ms", worst < 5*time.Millisecond || *costRounds < strictRounds)
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// crowd is M9: many concurrent calls on a cold host.
func (b *board) crowd(t *testing.T) {
	h := newHost(t)
	r := h.runtime(h.settings(1))
	before := h.audit()
	var ids []string
	for i := range *crowdSize {
		ids = append(ids, fmt.Sprintf("m9-%d", i))
		h.container(ids[i])
	}
	all := func(f func(i int, id string) error) (failures int) {
		errs := make([]error, len(ids))
		var wg sync.WaitGroup
		for i, id := range ids {
			wg.Go(func() {
				errs[i] = f(i, id)
			})
		}
		wg.Wait()
		for _, err := range errs {
			if err != nil {
				t.Error(err)
				failures++
			}
		}
		return failures
	}
	failures := all(func(i int, id string) error {
		_, err := r.Setup(context.Background(), id, h.netns(id), ports(int32(10000+i))...)
		return err
	})
	made, _ := audit.Diff(before, h.everything())
	twice := duplicates(t, made)
	failures += all(func(_ int, id string) error { return r.Remove(context.Background(), id, h.netns(id)) })
	h.letGo()
	h.wantSame(before)
	b.figure(t, "M9", fmt.Sprintf("%d containers at once, cold", len(ids)),
		fmt.Sprintf("%d failures, %d duplicates", failures, twice), "0 and 0", failures+twice == 0)
}

// everything is the audit including shared lines.
func (h *host) everything() audit.Lines {
	h.t.Helper()
	lines := expect.Value(audit.Snapshot(context.Background(), audit.Options{StateDirs: []string{h.path("ipam")}}))(h.t)
	return lines.Without(func(l string) bool { return l[:2] != "ip" && l[:3] != "nft" && l[:4] != "file" })
}

func duplicates(t *testing.T, lines audit.Lines) (n int) {
	seen := map[string]bool{}
	for _, l := range lines {
		if seen[l] {
			t.Log("twice:", l)
			n++
		}
		seen[l] = true
	}
	return n
}

// wantSame checks that no container has left anything.
func (h *host) wantSame(before audit.Lines) {
	h.t.Helper()
	added, gone := audit.Diff(before, h.audit())
	expect.Unchanged(h.t, "left", added, gone)
	// Records, including unfinished ones. The owner's ledger stays.
	expect.Empty(h.t, "records", expect.Value(filepath.Glob(h.path("state", "embedcni", "attachments", "*.json*")))(h.t))
	expect.Value(os.Stat(h.path("state")))(h.t)
}

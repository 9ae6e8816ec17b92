package lock

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
)

// patience limits a test's wait for events that must happen. A successful run
// takes almost none of it.
const patience = 20 * time.Second

func newSpace(t testing.TB) *Space {
	t.Helper()
	return Open(filepath.Join(t.TempDir(), "state", "lock"))
}

func mustLock(t testing.TB, s *Space, keys ...Key) *Held {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return expect.Value(s.LockAll(ctx, keys))(t)
}

func mustRelease(t testing.TB, h *Held) {
	t.Helper()
	expect.NoError(t, h.Release())
}

// isFree reports whether the keys are available without waiting, in the process
// and, through another Space, across processes. On a machine that stalls they may not
// be: a test that wants them free locks them.
func isFree(t testing.TB, s *Space, keys ...Key) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	h, err := Open(s.path).LockAll(ctx, keys)
	if errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	expect.NoError(t, err)
	mustRelease(t, h)
	return true
}

// waiting returns the length of a key's line.
func waiting(s *Space, name string) int {
	s.local.mu.Lock()
	defer s.local.mu.Unlock()
	n := 0
	for _, w := range s.local.lines[Byte(name)] {
		if !w.has {
			n++
		}
	}
	return n
}

func idle(s *Space) bool {
	s.local.mu.Lock()
	defer s.local.mu.Unlock()
	return len(s.local.lines) == 0
}

func TestLockExcludesGoroutines(t *testing.T) {
	s := newSpace(t)
	const goroutines, rounds = 64, 50
	var wg sync.WaitGroup
	counter := 0 // only the lock protects it: the race detector watches too
	for range goroutines {
		wg.Go(func() {
			for range rounds {
				h, err := s.Lock(context.Background(), "container")
				if err != nil {
					t.Error(err)
					return
				}
				counter++
				expect.Succeeds(t, "Release", h.Release())
			}
		})
	}
	wg.Wait()
	expect.Same(t, "counted", counter, goroutines*rounds)
	expect.That(t, idle(s), "the queue keeps unused keys")
}

func TestLockIsFirstComeFirstServed(t *testing.T) {
	s := newSpace(t)
	first := mustLock(t, s, Key{Name: "k"})
	const n = 10
	var mu sync.Mutex
	var order, want []int
	var wg sync.WaitGroup
	for i := range n {
		want = append(want, i)
		wg.Go(func() {
			h, err := s.Lock(context.Background(), "k")
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			order = append(order, i)
			mu.Unlock()
			expect.Succeeds(t, "Release", h.Release())
		})
		expect.Eventually(t, "the next one waits", func() bool { return waiting(s, "k") == i+1 })
	}
	mustRelease(t, first)
	wg.Wait()
	expect.Same(t, "served in the order", order, want)
}

func TestGivingUpIsPromptAndLeavesNothing(t *testing.T) {
	s := newSpace(t)
	h := mustLock(t, s, Key{Name: "busy"})
	before := runtime.NumGoroutine()
	cause := errors.New("the container is gone")
	ctx, cancel := context.WithCancelCause(context.Background())
	result := make(chan error, 1)
	go func() {
		_, err := s.LockAll(ctx, []Key{{Name: "a"}, {Name: "b"}, {Name: "busy"}})
		result <- err
	}()
	expect.Eventually(t, "it waits", func() bool { return waiting(s, "busy") == 1 })
	start := time.Now()
	cancel(cause)
	err := <-result
	took := time.Since(start)
	expect.Within(t, "giving up", took, patience)
	expect.That(t, errors.Is(err, context.Canceled) && errors.Is(err, cause), "got %v, want an error that is Canceled and its cause", err)
	want := `lock "busy": held in this process: context canceled: the container is gone`
	expect.That(t, err.Error() == want, "got  %s\nwant %s", err, want)
	mustRelease(t, mustLock(t, Open(s.path), Key{Name: "a"}, Key{Name: "b"})) // the failed LockAll kept no key
	mustRelease(t, h)
	expect.Eventually(t, "no goroutine left", func() bool { return runtime.NumGoroutine() <= before })
	expect.That(t, idle(s), "the queue keeps unused keys")
}

func TestAnEndedContextTakesNothing(t *testing.T) {
	s := newSpace(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	expect.Is(t, expect.Err(s.Lock(ctx, "k")), context.Canceled)
	expect.That(t, idle(s), "something was taken")
}

func TestSharedHoldersExcludeOnlyExclusiveOnes(t *testing.T) {
	shared, exclusive := Key{Name: "gc", Shared: true}, Key{Name: "gc"}
	s := newSpace(t)
	r1, r2 := mustLock(t, s, shared), mustLock(t, s, shared)
	expect.That(t, !isFree(t, s, exclusive), "an exclusive holder beside shared ones")
	mustRelease(t, r1)
	expect.That(t, !isFree(t, s, exclusive), "an exclusive holder beside a shared one")
	mustRelease(t, r2)
	w := mustLock(t, s, exclusive)
	expect.That(t, !isFree(t, s, shared), "a shared holder beside an exclusive one")
	mustRelease(t, mustLock(t, Open(s.path), Key{Name: "other"})) // an unrelated key
	mustRelease(t, w)
}

func TestSharedHoldersDoNotStarveExclusiveOnes(t *testing.T) {
	s := newSpace(t)
	r := mustLock(t, s, Key{Name: "gc", Shared: true})
	got := make(chan *Held, 2)
	lock := func(k Key) {
		h, err := s.LockAll(context.Background(), []Key{k})
		expect.That(t, err == nil, "%v", err)
		got <- h
	}
	go lock(Key{Name: "gc"})
	expect.Eventually(t, "the exclusive one waits", func() bool { return waiting(s, "gc") == 1 })
	go lock(Key{Name: "gc", Shared: true})
	expect.Eventually(t, "the shared one waits behind it", func() bool { return waiting(s, "gc") == 2 })
	mustRelease(t, r)
	first := <-got
	expect.That(t, !first.claims[0].shared, "a shared holder overtook an exclusive one")
	mustRelease(t, first)
	mustRelease(t, <-got)
}

func TestAnExclusiveWaiterThatGivesUpLetsSharedOnesThrough(t *testing.T) {
	s := newSpace(t)
	r := mustLock(t, s, Key{Name: "gc", Shared: true})
	ctx, cancel := context.WithCancel(context.Background())
	result, got := make(chan error, 1), make(chan *Held, 1)
	go func() {
		_, err := s.Lock(ctx, "gc")
		result <- err
	}()
	expect.Eventually(t, "the exclusive one waits", func() bool { return waiting(s, "gc") == 1 })
	go func() {
		h, err := s.LockAll(context.Background(), []Key{{Name: "gc", Shared: true}})
		expect.That(t, err == nil, "%v", err)
		got <- h
	}()
	expect.Eventually(t, "the shared one waits", func() bool { return waiting(s, "gc") == 2 })
	cancel()
	expect.Is(t, <-result, context.Canceled)
	mustRelease(t, <-got)
	mustRelease(t, r)
}

func TestClaims(t *testing.T) {
	type row struct {
		name   string
		shared bool
	}
	for _, tt := range []struct {
		name string
		keys []Key
		want []row
	}{
		{"none", nil, []row{}},
		{"twice", []Key{{Name: "a"}, {Name: "a"}}, []row{{"a", false}}},
		{"exclusive wins, last", []Key{{Name: "a", Shared: true}, {Name: "a"}}, []row{{"a", false}}},
		{"exclusive wins, first", []Key{{Name: "a"}, {Name: "a", Shared: true}}, []row{{"a", false}}},
		{"shared twice", []Key{{Name: "a", Shared: true}, {Name: "a", Shared: true}}, []row{{"a", true}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := []row{}
			for _, c := range claimsOf(tt.keys) {
				got = append(got, row{c.name, c.shared})
			}
			expect.Same(t, "result", got, tt.want)
		})
	}
	forth, back := claimsOf([]Key{{Name: "a"}, {Name: "b"}, {Name: "c"}}), claimsOf([]Key{{Name: "c"}, {Name: "a"}, {Name: "b"}})
	expect.Same(t, "claims of the keys in another order", forth, back)
	for i := range 1000 {
		off := Byte(fmt.Sprint(i))
		expect.Must(t, off >= 0 && off&1 == 0, "offset of %d is %d, want an even one that is not negative", i, off)
	}
}

func TestReleaseTwice(t *testing.T) {
	s := newSpace(t)
	h := mustLock(t, s, Key{Name: "k"})
	mustRelease(t, h)
	other := mustLock(t, s, Key{Name: "k"})
	mustRelease(t, h)
	expect.That(t, !isFreeHere(s, "k"), "the second Release released somebody else's lock")
	mustRelease(t, other)
}

func isFreeHere(s *Space, name string) bool {
	s.local.mu.Lock()
	defer s.local.mu.Unlock()
	return s.local.lines[Byte(name)] == nil
}

func TestFirstIsTakenBeforeAllOthers(t *testing.T) {
	for i := range 1000 {
		claims := claimsOf([]Key{{Name: fmt.Sprint("container/", i)}, {Name: First, Shared: true}})
		expect.Must(t, len(claims) == 2 && claims[0].name == First, "order %v", claims)
	}
}

// TestOneThatGivesUpLeavesTheKeyToTheOthers: another that shares the key may have left in the
// place of a caller that was handed the key at the moment in which it gave up.
func TestOneThatGivesUpLeavesTheKeyToTheOthers(t *testing.T) {
	var q queue
	shared := claim{offset: 2, shared: true}
	exclusive := claim{offset: 2}
	expect.Same(t, "exclusive", q.try(exclusive), true)
	gives, stays := q.join(shared, true), q.join(shared, true)
	q.releaseAll([]claim{exclusive})
	expect.Same(t, "both have it", gives.has && stays.has, true)
	q.releaseAll([]claim{shared}) // stays
	expect.Same(t, "still shared", q.try(exclusive), false)
	q.giveUp(shared, gives)
	expect.Same(t, "free", len(q.lines), 0)
}

package thread

import (
	"errors"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
)

// TestEachCallsForEachNumberOnce, as many at the same time as it may, and no more.
func TestEachCallsForEachNumberOnce(t *testing.T) {
	for _, tt := range []struct{ n, atOnce, want int }{{0, 4, 0}, {1, 4, 1}, {3, 4, 3}, {4, 4, 4}, {25, 4, 4}, {5, 1, 1}} {
		var mu sync.Mutex
		var called []int
		running, most := 0, 0
		full := make(chan struct{}) // closed when as many run as may
		Each(tt.n, tt.atOnce, func(i int) {
			mu.Lock()
			called = append(called, i)
			running++
			if most = max(most, running); running == tt.want && len(called) == tt.want {
				close(full)
			}
			mu.Unlock()
			expect.Await(t, "others at the same time", full)
			mu.Lock()
			running--
			mu.Unlock()
		})
		slices.Sort(called)
		var all []int
		for i := range tt.n {
			all = append(all, i)
		}
		expect.Same(t, "numbers", called, all)
		expect.Same(t, "at the same time", most, tt.want)
	}
}

// TestEachBeginsInOrder: with one at a time that is the order of the calls.
func TestEachBeginsInOrder(t *testing.T) {
	var called []int
	Each(4, 1, func(i int) { called = append(called, i) })
	expect.Same(t, "calls", called, []int{0, 1, 2, 3})
}

func TestTryReturnsAPanicAsAnError(t *testing.T) {
	err := Try(func() error { panic("oops") })
	expect.That(t, err != nil && strings.HasPrefix(err.Error(), "panic: oops\n"), "got %v", err)
	want := errors.New("no")
	expect.That(t, Try(func() error { return want }) == want, "another error")
}

func TestValuesAreSharedWhileSomebodyHasThem(t *testing.T) {
	var v Shared[string, [64]byte]
	made := 0
	get := func(key string) *[64]byte {
		return v.Get(key, func() *[64]byte { made++; return &[64]byte{} })
	}
	a, b, other := get("a"), get("a"), get("b")
	expect.Same(t, "values made", made, 2)
	expect.Same(t, "one value of one key", a == b, true)
	runtime.KeepAlive(other)
	collected(t, &v, "those that somebody has", []string{"a"})
	runtime.KeepAlive(a)
	collected(t, &v, "of nobody", nil)
	a = get("a")
	expect.Same(t, "values made afterwards", made, 3)
	collected(t, &v, "again", []string{"a"})
	runtime.KeepAlive(a)
}

// collected waits until only the values of these keys are left.
func collected(t *testing.T, v *Shared[string, [64]byte], what string, want []string) {
	t.Helper()
	keys := func() []string {
		v.mu.Lock()
		defer v.mu.Unlock()
		return slices.Sorted(maps.Keys(v.all))
	}
	for end := time.Now().Add(10 * time.Second); !slices.Equal(keys(), want) && time.Now().Before(end); {
		runtime.GC() // cleanups run some time after it
		runtime.Gosched()
	}
	expect.Same(t, what, keys(), want)
}

func TestManyGetAtOnce(t *testing.T) {
	var v Shared[int, atomic.Int64]
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 1000 {
				v.Get((i+n)%3, func() *atomic.Int64 { return &atomic.Int64{} }).Add(1)
			}
			runtime.GC()
		})
	}
	wg.Wait()
}

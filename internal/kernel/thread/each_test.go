package thread

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

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
	if err == nil || !strings.HasPrefix(err.Error(), "panic: oops\n") {
		t.Errorf("got %v", err)
	}
	if want := errors.New("no"); Try(func() error { return want }) != want {
		t.Error("another error")
	}
}

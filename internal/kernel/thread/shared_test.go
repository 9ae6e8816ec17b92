package thread

import (
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
)

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

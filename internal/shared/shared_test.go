package shared

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
)

func TestValuesAreSharedWhileSomebodyHasThem(t *testing.T) {
	var v Values[string, int]
	made := 0
	get := func(key string) *Ref[int] {
		return v.Get(key, func() *int { made++; return &made })
	}
	a, b, other := get("a"), get("a"), get("b")
	expect.Same(t, "values made", made, 2)
	if a.Value != b.Value {
		t.Error("one key has two values")
	}
	runtime.KeepAlive(a)
	collected(t, &v, "a of one user", map[string]int{"a": 1, "b": 1})
	runtime.KeepAlive(b)
	runtime.KeepAlive(other)
	collected(t, &v, "of nobody", map[string]int{})
	a = get("a")
	expect.Same(t, "values made afterwards", made, 3)
	collected(t, &v, "again", map[string]int{"a": 1})
	runtime.KeepAlive(a)
}

// collected waits until the values have as many users.
func collected(t *testing.T, v *Values[string, int], what string, want map[string]int) {
	t.Helper()
	users := func() map[string]int {
		v.mu.Lock()
		defer v.mu.Unlock()
		got := make(map[string]int)
		for key, e := range v.all {
			got[key] = e.refs
		}
		return got
	}
	for end := time.Now().Add(10 * time.Second); fmt.Sprint(users()) != fmt.Sprint(want) && time.Now().Before(end); {
		runtime.GC() // finalizers run some time after it
		runtime.Gosched()
	}
	expect.Same(t, what, users(), want)
}

func TestManyGetAtOnce(t *testing.T) {
	var v Values[int, atomic.Int64]
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for n := range 1000 {
				r := v.Get((i+n)%3, func() *atomic.Int64 { return &atomic.Int64{} })
				r.Value.Add(1)
			}
			runtime.GC()
		}()
	}
	wg.Wait()
}

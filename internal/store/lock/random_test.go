package lock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
)

// TestRandomInterleaving lets several "processes" (spaces on one file), each
// with several goroutines, take random sets of keys. Some have deadlines that
// end while they wait. It counts the holders.
func TestRandomInterleaving(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	path := filepath.Join(t.TempDir(), "lock")
	const keys, spaces, goroutines, rounds = 5, 3, 6, 60
	in := newCensus(keys)
	var wg sync.WaitGroup
	for p := range spaces {
		s := Open(path)
		t.Cleanup(func() {
			expect.That(t, idle(s), "the queue keeps unused keys")
		})
		for g := range goroutines {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(seed, uint64(p*goroutines+g)))
				for range rounds {
					in.visit(t, s, rnd)
				}
			})
		}
		if runtime.GOOS != "linux" {
			break // only there do several spaces exclude each other
		}
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	expect.Await(t, "the end: there is a deadlock", done)
	expect.That(t, in.visits != 0, "no goroutine ever got the lock")
	t.Logf("%d visits, %d given up", in.visits, in.gaveUp)
}

// census counts each key's holders under a lock of its own. It must not depend
// on the tested lock.
type census struct {
	mu                sync.Mutex
	shared, exclusive []int
	visits, gaveUp    int
}

func newCensus(keys int) *census {
	return &census{shared: make([]int, keys), exclusive: make([]int, keys)}
}

func (in *census) visit(t *testing.T, s *Space, rnd *rand.Rand) {
	want := map[int]bool{}
	var keys []Key
	for range 1 + rnd.IntN(3) {
		k, shared := rnd.IntN(len(in.shared)), rnd.IntN(2) == 0
		if _, twice := want[k]; twice {
			continue
		}
		want[k] = shared
		keys = append(keys, Key{Name: fmt.Sprint(k), Shared: shared})
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	if rnd.IntN(4) == 0 {
		ctx, cancel = context.WithTimeout(context.Background(), time.Duration(rnd.IntN(300))*time.Microsecond)
	}
	defer cancel()
	h, err := s.LockAll(ctx, keys)
	if err != nil {
		expect.Is(t, err, context.DeadlineExceeded)
		in.mu.Lock()
		in.gaveUp++
		in.mu.Unlock()
		return
	}
	in.count(t, want, +1)
	runtime.Gosched()
	in.count(t, want, -1)
	expect.NoError(t, h.Release())
}

func (in *census) count(t *testing.T, keys map[int]bool, by int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for k, shared := range keys {
		if shared {
			in.shared[k] += by
		} else {
			in.exclusive[k] += by
		}
		if in.exclusive[k] > 1 || in.exclusive[k] == 1 && in.shared[k] > 0 {
			t.Errorf("key %d has %d exclusive and %d shared holders", k, in.exclusive[k], in.shared[k])
		}
	}
	in.visits += max(by, 0)
}

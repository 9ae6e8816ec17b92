package batch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// ledger is what work has done, and which items fail.
type ledger struct {
	bad  map[string]error
	done map[string]int
	runs [][]string
}

// do does all items or none.
func (l *ledger) do(_ context.Context, items []string) error {
	l.runs = append(l.runs, slices.Clone(items))
	for _, i := range items {
		if err := l.bad[i]; err != nil {
			return err
		}
	}
	for _, i := range items {
		l.done[i]++
	}
	return nil
}

func newLedger(bad ...string) *ledger {
	l := &ledger{bad: map[string]error{}, done: map[string]int{}}
	for _, i := range bad {
		l.bad[i] = fmt.Errorf("%s is refused", i)
	}
	return l
}

func TestBatchesAreFlushedInOneCall(t *testing.T) {
	l := newLedger()
	var all []*Batch
	for _, items := range [][]string{{"a", "b"}, {}, {"c"}} {
		b := &Batch{}
		for _, i := range items {
			expect.NoError(t, Join(t.Context(), b, kind("rules"), i, l.do))
		}
		all = append(all, b)
	}
	expect.Same(t, "errors", FlushTogether(t.Context(), all), []error{nil, nil, nil})
	expect.Same(t, "calls", l.runs, [][]string{{"a", "b", "c"}})
	for _, b := range all {
		expect.Same(t, "empty", b.Empty(), true)
	}
	expect.NoError(t, Join(t.Context(), all[0], kind("rules"), "d", l.do))
	expect.Same(t, "delayed again", l.done["d"], 0)
}

// TestOneBadBatchCostsTheOthersLittle, and its error is its own.
func TestOneBadBatchCostsTheOthersLittle(t *testing.T) {
	l := newLedger("i37")
	var all []*Batch
	for i := range 64 {
		b := &Batch{}
		b.For("portmap")
		expect.NoError(t, Join(t.Context(), b, kind("rules"), fmt.Sprint("i", i), l.do))
		all = append(all, b)
	}
	for i, err := range FlushTogether(t.Context(), all) {
		if i != 37 {
			expect.NoError(t, err)
			continue
		}
		var failed Failures
		if !errors.As(err, &failed) || len(failed) != 1 || failed[0].Plugin != "portmap" || !errors.Is(err, l.bad["i37"]) {
			t.Errorf("got %v", err)
		}
	}
	expect.Same(t, "done", len(l.done), 63)
	if len(l.runs) > 2*6+1 {
		t.Errorf("%d calls", len(l.runs))
	}
}

// TestFlushTogetherWithTasksPanicsAndAnEndedContext: each error is that of its batch.
func TestFlushTogetherWithTasksPanicsAndAnEndedContext(t *testing.T) {
	stuck := errors.New("stuck")
	a, b, c := &Batch{}, &Batch{}, &Batch{}
	expect.NoError(t, a.Later(t.Context(), func(context.Context) error { return stuck }))
	expect.NoError(t, Join(t.Context(), b, kind("x"), "b", func(context.Context, []string) error { panic("oops") }))
	expect.NoError(t, Join(t.Context(), c, kind("y"), "c", newLedger().do))
	errs := FlushTogether(t.Context(), []*Batch{a, b, c})
	if !errors.Is(errs[0], stuck) || errs[1] == nil || errs[2] != nil {
		t.Errorf("got %v", errs)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ended := func(ctx context.Context, _ []string) error { return ctx.Err() }
	for _, one := range []*Batch{a, b} {
		expect.NoError(t, Join(t.Context(), one, kind("x"), "i", ended))
	}
	for _, err := range FlushTogether(ctx, []*Batch{a, b}) {
		expect.Is(t, err, context.Canceled)
	}
}

// TestRandomBatches: whatever is refused, all the rest is done once, and the errors are
// those of the refused.
func TestRandomBatches(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 500 {
		l := newLedger()
		var all []*Batch
		var bad []bool
		for i := range 1 + random.IntN(40) {
			b, refused := &Batch{}, random.IntN(12) == 0
			for n := range random.IntN(4) {
				item := fmt.Sprint(i, ".", n)
				b.For(fmt.Sprint("plugin", n))
				if refused {
					l.bad[item] = errors.New("refused")
				}
				expect.NoError(t, Join(t.Context(), b, kind(fmt.Sprint(random.IntN(3))), item, l.do))
			}
			all, bad = append(all, b), append(bad, refused && !b.Empty())
		}
		for i, err := range FlushTogether(t.Context(), all) {
			if (err != nil) != bad[i] {
				t.Fatalf("seed %d: batch %d: %v, want an error: %t", seed, i, err, bad[i])
			}
		}
		for item, n := range l.done {
			if n != 1 || l.bad[item] != nil {
				t.Fatalf("seed %d: %s was done %d times", seed, item, n)
			}
		}
	}
}

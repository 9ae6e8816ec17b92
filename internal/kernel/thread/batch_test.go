package thread

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// diary records actions in order.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) note(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

func (d *diary) want(t *testing.T, what string, want ...string) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	got := slices.Sorted(slices.Values(d.lines)) // groups and tasks run concurrently
	slices.Sort(want)
	expect.Same(t, what, got, want)
	d.lines = nil
}

func (d *diary) list(name string) func(context.Context, []string) error {
	return func(_ context.Context, items []string) error {
		d.note("%s %v", name, items)
		return nil
	}
}

func (d *diary) task(name string) func(context.Context) error {
	return func(context.Context) error {
		d.note("task %s", name)
		return nil
	}
}

type kind string

func TestItemsOfAKindAreDoneByOneCallInTheirOrder(t *testing.T) {
	d, b := &diary{}, &Batch{}
	ctx := context.Background()
	for _, item := range []string{"1", "2", "3"} {
		expect.NoError(t, Join(ctx, b, kind("a"), item, d.list("a")))
		expect.NoError(t, Join(ctx, b, kind("b"), "b"+item, d.list("b")))
		expect.NoError(t, b.Later(ctx, d.task(item)))
	}
	expect.NoError(t, Join(ctx, b, "a", "of another type's kind", d.list("string a")))
	d.want(t, "before the flush")
	expect.NoError(t, b.Flush(context.Background()))
	d.want(t, "by the flush", "a [1 2 3]", "b [b1 b2 b3]", "string a [of another type's kind]", "task 1", "task 2", "task 3")
	expect.NoError(t, b.Flush(context.Background()))
	d.want(t, "by a flush of an empty batch")
}

func TestOfSeveralFunctionsTheFirstIsCalled(t *testing.T) {
	d, b := &diary{}, &Batch{}
	ctx := context.Background()
	expect.NoError(t, Join(ctx, b, kind("a"), "1", d.list("first")), Join(ctx, b, kind("a"), "2", d.list("second")), b.Flush(ctx))
	d.want(t, "by the flush", "first [1 2]")
}

func TestItemsOfTwoTypesAreAnErrorOfTheirKindAlone(t *testing.T) {
	d, b := &diary{}, &Batch{}
	ctx := context.Background()
	expect.NoError(t, Join(ctx, b, kind("a"), "1", d.list("a")), b.Later(ctx, d.task("x")),
		Join(ctx, b, kind("a"), 2, func(context.Context, []int) error { return nil }))
	err := b.Flush(ctx)
	expect.That(t, err != nil && strings.Contains(err.Error(), "interface {} is int, not string"), "got %v", err)
	d.want(t, "by the flush", "task x")
}

func TestAllIsDoneDespiteFailures(t *testing.T) {
	d, b := &diary{}, &Batch{}
	ctx := context.Background()
	first, second := errors.New("first"), errors.New("second")
	expect.NoError(t,
		b.Later(ctx, func(context.Context) error { return first }),
		b.Later(ctx, func(context.Context) error { panic("third") }),
		b.Later(ctx, func(context.Context) error { runtime.Goexit(); return nil }),
		Join(ctx, b, kind("a"), "1", func(context.Context, []string) error { return second }),
		Join(ctx, b, kind("b"), "2", d.list("b")),
		b.Later(ctx, d.task("last")))
	err := b.Flush(ctx)
	d.want(t, "by the flush", "b [2]", "task last")
	expect.Is(t, err, first, second, errEnded)
	text := err.Error()
	expect.Contains(t, "the panic, and where", text, "panic: third\ngoroutine", "TestAllIsDoneDespiteFailures")
	expect.NoError(t, b.Flush(ctx))
}

func TestWithoutABatchAllIsDoneAtOnce(t *testing.T) {
	failure := errors.New("failure")
	d, ctx := &diary{}, context.Background()
	var b *Batch
	expect.NoError(t, Join(ctx, b, kind("a"), "1", d.list("a")), Join(ctx, b, kind("a"), "2", d.list("a")), b.Later(ctx, d.task("x")))
	d.want(t, "at once", "a [1]", "a [2]", "task x")
	for _, err := range []error{
		b.Later(ctx, func(context.Context) error { return failure }),
		Join(ctx, b, kind("a"), 1, func(context.Context, []int) error { return failure }),
	} {
		expect.Is(t, err, failure)
	}
}

// TestNothingIsDeferredInsideAFlush: nobody would run it. The context is the
// flush's, not the one that the work was deferred with.
func TestNothingIsDeferredInsideAFlush(t *testing.T) {
	d, b := &diary{}, &Batch{}
	ctx := context.Background()
	type value struct{}
	nested := func(ctx context.Context) error {
		d.note("in a flush with %v", ctx.Value(value{}))
		return errors.Join(b.Later(ctx, d.task("nested")), Join(ctx, b, kind("n"), "nested", d.list("n")))
	}
	expect.NoError(t, b.Later(ctx, nested), Join(ctx, b, kind("a"), "1", func(ctx context.Context, _ []string) error { return nested(ctx) }))
	expect.NoError(t, b.Flush(context.WithValue(ctx, value{}, "a value")))
	twice := []string{"in a flush with a value", "n [nested]", "task nested"}
	d.want(t, "by the flush", append(twice, twice...)...)
	expect.Same(t, "nothing was put off", b.Empty(), true)
}

// TestAFailureIsThatOfItsPlugin, also if the work of several plugins is done together.
// The others' is done nevertheless.
func TestAFailureIsThatOfItsPlugin(t *testing.T) {
	d, b := &diary{}, &Batch{}
	ctx := context.Background()
	bad, late := errors.New("bad"), errors.New("late")
	do := func(_ context.Context, items []string) error {
		d.note("%v", items)
		if slices.Contains(items, "2") {
			return bad
		}
		return nil
	}
	expect.NoError(t, b.Later(ctx, func(context.Context) error { return late }))
	for _, one := range [][]string{{"one", "1"}, {"two", "2", "22"}, {"three", "3"}} {
		plugin, items := one[0], one[1:]
		b.For(plugin)
		for _, item := range items {
			expect.NoError(t, Join(ctx, b, kind("a"), item, do), Join(ctx, b, kind(plugin), item, do))
		}
	}
	err := b.Flush(ctx)
	var failed Failures
	expect.Must(t, errors.As(err, &failed) && errors.Is(err, bad) && errors.Is(err, late) && len(failed) == 3 && failed[0] == (Failed{"", late}),
		"%#v", err)
	expect.Same(t, "failed", failed[1:], Failures{{"two", bad}, {"two", bad}})
	expect.Same(t, "text", err.Error(), "late; bad; bad")
	d.want(t, "by the flush", "[1 2 22 3]", "[1]", "[2 22 3]", "[2 22]", "[3]", "[1]", "[2 22]", "[3]")
	(*Batch)(nil).For("nobody")
}

// TestAFailureAfterTheEndIsThatOfAll: when the context has ended, nothing shows whose it
// was.
func TestAFailureAfterTheEndIsThatOfAll(t *testing.T) {
	b := &Batch{}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	times := 0
	for _, plugin := range []string{"one", "two"} {
		b.For(plugin)
		expect.NoError(t, Join(ctx, b, kind("a"), plugin, func(ctx context.Context, _ []string) error { times++; cancel(); return ctx.Err() }))
	}
	var failed Failures
	errors.As(b.Flush(ctx), &failed)
	expect.Same(t, "failed", failed, Failures{{"one", context.Canceled}, {"two", context.Canceled}})
	expect.Same(t, "times", times, 1)
}

// TestTheWorkRunsTogether: each task, and the work of a kind, waits until all others have
// begun, as kernel waits should.
func TestTheWorkRunsTogether(t *testing.T) {
	b := &Batch{}
	ctx := context.Background()
	var all sync.WaitGroup
	meet := func(context.Context) error { all.Done(); all.Wait(); return nil }
	all.Add(4)
	for range 3 {
		expect.NoError(t, b.Later(ctx, meet))
	}
	expect.NoError(t, Join(ctx, b, kind("a"), 1, func(ctx context.Context, _ []int) error { return meet(ctx) }))
	expect.NoError(t, b.Flush(ctx))
}

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
	l, stuck := newLedger(), errors.New("stuck")
	var all []*Batch
	for _, items := range [][]string{{"a", "b"}, {}, {"c"}} {
		b := &Batch{}
		for _, i := range items {
			expect.NoError(t, Join(t.Context(), b, kind("rules"), i, l.do))
		}
		all = append(all, b)
	}
	expect.NoError(t, all[1].Later(t.Context(), func(context.Context) error { return stuck }))
	expect.Same(t, "errors", FlushTogether(t.Context(), all), []error{nil, Failures{{"", stuck}}, nil})
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
		expect.That(t, errors.As(err, &failed) && len(failed) == 1 && failed[0].Plugin == "portmap" && errors.Is(err, l.bad["i37"]), "got %v", err)
	}
	expect.Same(t, "done", len(l.done), 63)
	expect.That(t, len(l.runs) <= 2*6+1, "%d calls", len(l.runs))
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
			expect.Must(t, (err != nil) == bad[i], "seed %d: batch %d: %v, want an error: %t", seed, i, err, bad[i])
		}
		for item, n := range l.done {
			expect.Must(t, n == 1 && l.bad[item] == nil, "seed %d: %s was done %d times", seed, item, n)
		}
	}
}

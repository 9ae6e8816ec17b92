package parallel

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
)

// Batch lets the in-process plugins of one attachment combine slow kernel work. All changes
// of nftables go into one transaction, and deletions that wait for a grace period of the
// kernel wait together. It is safe for concurrent use.
//
// The runtime gives a Batch to a chain of plugins, and flushes it before it runs an
// executable, and at the end. Without one, which is a nil *Batch, as in a plugin's own
// tests, work is done at once.
//
// A failed ADD is not flushed: the deferred work of its plugins is dropped, because the DEL
// that follows would only remove it again. So finished work must not rely on deferred work
// to undo it.
type Batch struct {
	mu       sync.Mutex
	plugin   string // whose work is collected now
	items    []*item
	flushing bool
}

// item is work of one plugin.
type item struct {
	batch  *Batch
	plugin string
	kind   any // of work that is done in one call; nil: by itself
	value  any
	do     func(ctx context.Context, values []any) error
	err    error // of the work of the plugin of that kind, at its first item
}

func (i *item) isOfBatch(other *item) bool { return i.batch == other.batch }

func (i *item) isOfOwner(other *item) bool { return i.isOfBatch(other) && i.plugin == other.plugin }

// Failed is work of a plugin that failed.
type Failed struct {
	Plugin string
	Err    error
}

// Failures is the error of [Batch.Flush].
type Failures []Failed

// Error returns the errors, a line for each.
func (f Failures) Error() string { return errors.Join(f.Unwrap()...).Error() }

// Unwrap returns the errors.
func (f Failures) Unwrap() []error {
	var errs []error
	for _, one := range f {
		errs = append(errs, one.Err)
	}
	return errs
}

// For names the plugin whose work is collected from now on. A nil Batch ignores it.
func (b *Batch) For(plugin string) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.plugin = plugin
}

// Join adds one item to the items of its kind. At the flush, do is called once with
// all items of a kind, in the order in which they were added. A kind is any
// comparable value, best of a type of its own; its items have one type, and of
// several functions the first is called. Without a batch, do is called at once.
func Join[T any](ctx context.Context, b *Batch, kind any, one T, do func(ctx context.Context, items []T) error) error {
	all := func(ctx context.Context, items []any) error {
		typed := make([]T, len(items))
		for i, item := range items {
			typed[i] = item.(T)
		}
		return do(ctx, typed)
	}
	return b.add(ctx, &item{kind: kind, value: one, do: all})
}

// Later adds a task that waits for the kernel and on which nothing else depends.
// It runs in parallel with the others at the flush, and without a batch at once.
func (b *Batch) Later(ctx context.Context, do func(context.Context) error) error {
	return b.add(ctx, &item{do: func(ctx context.Context, _ []any) error { return do(ctx) }})
}

// add adds an item, or does it at once.
func (b *Batch) add(ctx context.Context, one *item) error {
	if b != nil {
		b.mu.Lock()
		if !b.flushing {
			defer b.mu.Unlock()
			one.batch, one.plugin = b, b.plugin
			b.items = append(b.items, one)
			return nil
		}
		b.mu.Unlock()
	}
	return one.do(ctx, []any{one.value})
}

// Empty reports whether there is no work.
func (b *Batch) Empty() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.items) == 0
}

// Flush does all collected work and returns all errors as [Failures], those of the
// tasks first. The batch is empty afterwards, even after an error. Work that would be
// deferred during the flush is done at once.
//
// The tasks run in parallel, and beside them the kinds one after the other. If work of
// several plugins fails together, it is done again for each plugin by itself: that shows
// whose failed. When ctx has ended, it counts as that of each.
func (b *Batch) Flush(ctx context.Context) error { return FlushTogether(ctx, []*Batch{b})[0] }

// FlushTogether does the collected work of several batches, that of one kind in one
// call. It returns the error of [Batch.Flush] for each batch. If the work of several
// fails together, it is done again for each half of them, so that the failure of one
// costs the others little; in the end for each by itself, as Flush does.
func FlushTogether(ctx context.Context, all []*Batch) []error {
	var items []*item
	for _, b := range all {
		items = append(items, b.begin()...)
		defer b.end()
	}
	var tasks sync.WaitGroup
	defer tasks.Wait() // also if work ends this goroutine
	kinds := []any{nil}
	for _, one := range items {
		if one.kind == nil {
			tasks.Go(func() {
				one.err = errEnded // unless it returns or panics
				one.err = run(ctx, []*item{one})
			})
		} else if !slices.Contains(kinds, one.kind) {
			kinds = append(kinds, one.kind)
		}
	}
	for _, kind := range kinds[1:] {
		together(ctx, those(items, func(one *item) bool { return one.kind == kind }))
	}
	tasks.Wait()
	errs := make([]error, len(all))
	for i, b := range all {
		var failed Failures
		for _, kind := range kinds {
			for _, one := range items {
				if one.batch == b && one.kind == kind && one.err != nil {
					failed = append(failed, Failed{one.plugin, one.err})
				}
			}
		}
		if len(failed) > 0 {
			errs[i] = failed
		}
	}
	return errs
}

// begin empties the batch, and begins a flush.
func (b *Batch) begin() []*item {
	b.mu.Lock()
	defer b.mu.Unlock()
	items := b.items
	b.items, b.flushing = nil, true
	return items
}

// end lets work be put off again.
func (b *Batch) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.flushing = false
}

// together does work of one kind, and notes what has failed.
func together(ctx context.Context, items []*item) {
	err := run(ctx, items)
	if err == nil {
		return
	}
	batches, owners := firsts(items, (*item).isOfBatch), firsts(items, (*item).isOfOwner)
	switch {
	case len(owners) == 1 || ctx.Err() != nil:
		for _, one := range owners {
			one.err = err
		}
	case len(batches) == 1:
		for _, owner := range owners {
			together(ctx, those(items, owner.isOfOwner))
		}
	default:
		inHalf := func(one *item) bool { return slices.ContainsFunc(batches[:len(batches)/2], one.isOfBatch) }
		together(ctx, those(items, inHalf))
		together(ctx, those(items, func(one *item) bool { return !inHalf(one) }))
	}
}

// firsts returns the first of items that are alike.
func firsts(items []*item, alike func(a, b *item) bool) (all []*item) {
	for _, one := range items {
		if !slices.ContainsFunc(all, func(other *item) bool { return alike(one, other) }) {
			all = append(all, one)
		}
	}
	return all
}

func those(items []*item, are func(*item) bool) []*item {
	return slices.DeleteFunc(slices.Clone(items), func(one *item) bool { return !are(one) })
}

var errEnded = errors.New("deferred work ended its goroutine")

// run turns a panic, which in a goroutine would end the program, into an error.
func run(ctx context.Context, items []*item) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("deferred work panicked: %v\n%s", v, debug.Stack())
		}
	}()
	var values []any
	for _, one := range items {
		values = append(values, one.value)
	}
	return items[0].do(ctx, values)
}

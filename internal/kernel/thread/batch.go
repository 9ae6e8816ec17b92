package thread

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/embedcni/cni/internal/kernel/joined"
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
	parts    []*part
	flushing bool
}

// part is work of one plugin: a task, or all that it has of a kind.
type part struct {
	plugin string
	kind   any // nil: a task, which is done by itself
	values []any
	do     func(ctx context.Context, values []any) error
	err    error
}

// Failed is work of a plugin that failed.
type Failed struct {
	Plugin string
	Err    error
}

// Failures is the error of [Batch.Flush].
type Failures []Failed

// Error returns the errors in one line.
func (f Failures) Error() string { return joined.Errors(f.Unwrap()...).Error() }

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
// all items of a kind, those of a plugin in the order in which they were added. A kind is any
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
	return b.add(ctx, &part{kind: kind, values: []any{one}, do: all})
}

// Later adds a task that waits for the kernel and on which nothing else depends.
// It runs in parallel with the others at the flush, and without a batch at once.
func (b *Batch) Later(ctx context.Context, do func(context.Context) error) error {
	return b.add(ctx, &part{do: func(ctx context.Context, _ []any) error { return do(ctx) }})
}

// add adds work, or does it at once.
func (b *Batch) add(ctx context.Context, one *part) error {
	if b == nil {
		return one.do(ctx, one.values)
	}
	b.mu.Lock()
	if b.flushing {
		b.mu.Unlock()
		return one.do(ctx, one.values)
	}
	defer b.mu.Unlock()
	one.plugin = b.plugin
	i := slices.IndexFunc(b.parts, func(p *part) bool { return p.kind != nil && p.kind == one.kind && p.plugin == one.plugin })
	if i >= 0 {
		b.parts[i].values = append(b.parts[i].values, one.values...)
	} else {
		b.parts = append(b.parts, one)
	}
	return nil
}

// Empty reports whether there is no work.
func (b *Batch) Empty() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.parts) == 0
}

// Flush does all collected work and returns all errors as [Failures], those of the
// tasks first. The batch is empty afterwards, even after an error. Work that would be
// deferred during the flush is done at once.
//
// The tasks run in parallel, and beside them the kinds one after the other. If work of
// several plugins fails together, it is done again for each half of them, and in the end for
// each plugin by itself: that shows whose failed. When ctx has ended, it counts as that of
// each.
func (b *Batch) Flush(ctx context.Context) error { return FlushTogether(ctx, []*Batch{b})[0] }

// FlushTogether does the collected work of several batches, that of one kind in one
// call. It returns the error of [Batch.Flush] for each batch.
func FlushTogether(ctx context.Context, all []*Batch) []error {
	begun := make([][]*part, len(all))
	for i, b := range all {
		begun[i] = b.begin()
		defer b.end()
	}
	var tasks sync.WaitGroup
	defer tasks.Wait() // also if work ends this goroutine
	var kinds []any
	of := make(map[any][]*part)
	for _, one := range slices.Concat(begun...) {
		if one.kind == nil {
			tasks.Go(func() {
				one.err = errEnded // unless it returns or panics
				together(ctx, []*part{one})
			})
			continue
		}
		if of[one.kind] == nil {
			kinds = append(kinds, one.kind)
		}
		of[one.kind] = append(of[one.kind], one)
	}
	for _, kind := range kinds {
		together(ctx, of[kind])
	}
	tasks.Wait()
	errs := make([]error, len(all))
	for i, parts := range begun {
		errs[i] = failed(parts)
	}
	return errs
}

// begin empties the batch, and begins a flush.
func (b *Batch) begin() []*part {
	b.mu.Lock()
	defer b.mu.Unlock()
	parts := b.parts
	b.parts, b.flushing = nil, true
	return parts
}

// end lets work be put off again.
func (b *Batch) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.flushing = false
}

var errEnded = errors.New("deferred work ended its goroutine")

// together does a task or work of one kind, and notes what has failed. A panic in a goroutine
// would end the program.
func together(ctx context.Context, parts []*part) {
	var values []any
	for _, one := range parts {
		values = append(values, one.values...)
	}
	err := Try(func() error { return parts[0].do(ctx, values) })
	if half := len(parts) / 2; err != nil && half > 0 && ctx.Err() == nil {
		together(ctx, parts[:half])
		together(ctx, parts[half:])
		return
	}
	for _, one := range parts {
		one.err = err
	}
}

// failed returns the failures of a batch, those of tasks first.
func failed(parts []*part) error {
	var all Failures
	for _, ofTasks := range []bool{true, false} {
		for _, one := range parts {
			if one.err != nil && (one.kind == nil) == ofTasks {
				all = append(all, Failed{one.plugin, one.err})
			}
		}
	}
	if all == nil {
		return nil
	}
	return all
}

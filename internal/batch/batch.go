// Package batch lets the in-process plugins of one attachment combine slow
// kernel work. All changes of nftables go into one transaction, and deletions
// that wait for a grace period of the kernel wait together.
//
// The runtime gives a [Batch] to a chain of plugins, and flushes it before it runs
// an executable, and at the end. Without one, which is a nil *Batch, as in a
// plugin's own tests, work is done at once.
//
// A failed ADD is not flushed: the deferred work of its plugins is dropped,
// because the DEL that follows would only remove it again. So finished work must
// not rely on deferred work to undo it.
package batch

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
)

// Batch collects work. It is safe for concurrent use.
type Batch struct {
	mu     sync.Mutex
	groups map[any]*group
	order  []any
	tasks  []func(context.Context) error

	flushing bool
}

// group is work of one kind, which one call does.
type group struct {
	items []any
	do    func(ctx context.Context, items []any) error
}

// Join adds item to the items of its kind. At the flush, do is called once with
// all items of a kind, in the order in which they were added. A kind is any
// comparable value, best of a type of its own; its items have one type, and of
// several functions the first is called. Without a batch, do is called at once.
func Join[T any](ctx context.Context, b *Batch, kind any, item T, do func(ctx context.Context, items []T) error) error {
	if !b.defers() {
		return do(ctx, []T{item})
	}
	defer b.mu.Unlock()
	g := b.groups[kind]
	if g == nil {
		if b.groups == nil {
			b.groups = make(map[any]*group)
		}
		g = &group{do: func(ctx context.Context, items []any) error {
			typed := make([]T, len(items))
			for i, item := range items {
				one, ok := item.(T)
				if !ok {
					return fmt.Errorf("work of kind %v is of two types: %T and %T", kind, one, item)
				}
				typed[i] = one
			}
			return do(ctx, typed)
		}}
		b.groups[kind] = g
		b.order = append(b.order, kind)
	}
	g.items = append(g.items, item)
	return nil
}

// Later adds a task that waits for the kernel and on which nothing else depends.
// It runs in parallel with the others at the flush, and without a batch at once.
func (b *Batch) Later(ctx context.Context, task func(context.Context) error) error {
	if !b.defers() {
		return task(ctx)
	}
	defer b.mu.Unlock()
	b.tasks = append(b.tasks, task)
	return nil
}

// defers reports whether work is deferred, and if so returns with the lock held.
func (b *Batch) defers() bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	if b.flushing {
		b.mu.Unlock()
		return false
	}
	return true
}

// Empty reports whether there is no work.
func (b *Batch) Empty() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.order)+len(b.tasks) == 0
}

// Flush does all collected work and returns all errors, those of the tasks
// first. The batch is empty afterwards, even after an error. Work that would be
// deferred during the flush is done at once.
func (b *Batch) Flush(ctx context.Context) error {
	work := b.take()
	defer b.flushed()
	if len(work) == 1 { // as in nearly every ADD: another thread would have to wake up for it
		return run(ctx, work[0])
	}
	errs := make([]error, len(work))
	var wg sync.WaitGroup
	for i, task := range work {
		wg.Add(1)
		go func() {
			defer wg.Done()
			errs[i] = errEnded // unless it returns or panics
			errs[i] = run(ctx, task)
		}()
	}
	wg.Wait()
	return errors.Join(errs...)
}

// flushed lets work be put off again.
func (b *Batch) flushed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.flushing = false
}

// take empties the batch, and begins a flush.
func (b *Batch) take() []func(context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	work := b.tasks
	for _, kind := range b.order {
		g := b.groups[kind]
		work = append(work, func(ctx context.Context) error { return g.do(ctx, g.items) })
	}
	b.groups, b.order, b.tasks, b.flushing = nil, nil, nil, true
	return work
}

var errEnded = errors.New("deferred work ended its goroutine")

// run turns a panic, which in a goroutine would end the program, into an error.
func run(ctx context.Context, task func(context.Context) error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("deferred work panicked: %v\n%s", v, debug.Stack())
		}
	}()
	return task(ctx)
}

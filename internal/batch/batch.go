// Package batch lets the in-process plugins of one attachment share what makes
// the kernel wait: all changes of nftables go in one transaction, and deletions
// that wait for a grace period of the kernel wait for it together.
//
// The runtime puts a [Batch] into the context of a chain of plugins, and
// flushes it before it runs an executable, and at the end. A plugin that finds
// none, as in a test of its own, works at once.
package batch

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Batch collects work. It is safe for concurrent use.
type Batch struct {
	mu     sync.Mutex
	groups map[any]*group
	order  []any
	tasks  []func(context.Context) error
}

// group is work of one kind, which is done by one call.
type group struct {
	items []any
	do    func(ctx context.Context, items []any) error
}

type key struct{}

// With returns a context that carries b.
func With(ctx context.Context, b *Batch) context.Context { return context.WithValue(ctx, key{}, b) }

// From returns the batch of the context, or nil.
func From(ctx context.Context) *Batch {
	b, _ := ctx.Value(key{}).(*Batch)
	return b
}

// Join adds item to what do will be called with at the flush: once for all
// items of the same key, in the order in which they came. Without a batch it is
// called now.
func Join[T any](ctx context.Context, kind any, item T, do func(ctx context.Context, items []T) error) error {
	b := From(ctx)
	if b == nil {
		return do(ctx, []T{item})
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.groups[kind]
	if g == nil {
		if b.groups == nil {
			b.groups = make(map[any]*group)
		}
		g = &group{do: func(ctx context.Context, items []any) error {
			typed := make([]T, len(items))
			for i, item := range items {
				typed[i] = item.(T)
			}
			return do(ctx, typed)
		}}
		b.groups[kind] = g
		b.order = append(b.order, kind)
	}
	g.items = append(g.items, item)
	return nil
}

// Later adds a task that waits for the kernel and that nothing else depends on.
// It runs beside all others at the flush; without a batch, now.
func Later(ctx context.Context, task func(context.Context) error) error {
	b := From(ctx)
	if b == nil {
		return task(ctx)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tasks = append(b.tasks, task)
	return nil
}

// Flush does what was collected, all of it at once, and returns the errors of
// all. The batch is empty then.
func (b *Batch) Flush(ctx context.Context) error {
	b.mu.Lock()
	tasks := b.tasks
	for _, kind := range b.order {
		g := b.groups[kind]
		tasks = append(tasks, func(ctx context.Context) error { return g.do(ctx, g.items) })
	}
	b.groups, b.order, b.tasks = nil, nil, nil
	b.mu.Unlock()

	ctx = context.WithValue(ctx, key{}, (*Batch)(nil)) // what is done now is not put off again
	errs := make([]error, len(tasks))
	var wg sync.WaitGroup
	for i, task := range tasks {
		wg.Add(1)
		go func() {
			defer wg.Done()
			errs[i] = run(ctx, task)
		}()
	}
	wg.Wait()
	return errors.Join(errs...)
}

// run turns a panic, which in a goroutine would end the program, into an error.
func run(ctx context.Context, task func(context.Context) error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	return task(ctx)
}

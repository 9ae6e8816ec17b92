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
	"slices"
	"sync"
)

// Batch collects work. It is safe for concurrent use.
type Batch struct {
	mu     sync.Mutex
	plugin string // whose work is collected now
	groups map[any]*group
	order  []any
	tasks  []task

	flushing bool
}

// group is work of one kind, which one call does.
type group struct {
	items []item
	do    func(ctx context.Context, items []any) error
}

// item is the part of one plugin in the work of a group.
type item struct {
	plugin string
	value  any
}

// task is work by itself.
type task struct {
	plugin string
	do     func(context.Context) error
}

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
	if !b.defers() {
		return do(ctx, []T{one})
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
	g.items = append(g.items, item{b.plugin, one})
	return nil
}

// Later adds a task that waits for the kernel and on which nothing else depends.
// It runs in parallel with the others at the flush, and without a batch at once.
func (b *Batch) Later(ctx context.Context, do func(context.Context) error) error {
	if !b.defers() {
		return do(ctx)
	}
	defer b.mu.Unlock()
	b.tasks = append(b.tasks, task{b.plugin, do})
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
	works := make([]work, len(all))
	for i, b := range all {
		works[i] = b.take()
		defer b.flushed()
	}
	var wg sync.WaitGroup
	defer wg.Wait() // also if work ends this goroutine
	tasks := make([][]error, len(all))
	for i, w := range works {
		tasks[i] = make([]error, len(w.tasks))
		for j, t := range w.tasks {
			wg.Go(func() {
				tasks[i][j] = errEnded // unless it returns or panics
				tasks[i][j] = run(ctx, t.do)
			})
		}
	}
	ofKinds := make([]Failures, len(all))
	for _, kind := range kindsOf(works) {
		var some []int
		for i, w := range works {
			if w.groups[kind] != nil {
				some = append(some, i)
			}
		}
		together(ctx, works, kind, some, ofKinds)
	}
	wg.Wait()
	errs := make([]error, len(all))
	for i, w := range works {
		var failed Failures
		for j, err := range tasks[i] {
			if err != nil {
				failed = append(failed, Failed{w.tasks[j].plugin, err})
			}
		}
		if failed = append(failed, ofKinds[i]...); len(failed) > 0 {
			errs[i] = failed
		}
	}
	return errs
}

// kindsOf returns the kinds of works, each once.
func kindsOf(works []work) (kinds []any) {
	for _, w := range works {
		for _, kind := range w.order {
			if !slices.Contains(kinds, kind) {
				kinds = append(kinds, kind)
			}
		}
	}
	return kinds
}

// together does the work of one kind of some batches, and adds to what has failed.
func together(ctx context.Context, works []work, kind any, some []int, failed []Failures) {
	if len(some) == 1 || ctx.Err() != nil {
		for _, i := range some {
			failed[i] = append(failed[i], works[i].groups[kind].run(ctx)...)
		}
		return
	}
	var values []any
	for _, i := range some {
		for _, one := range works[i].groups[kind].items {
			values = append(values, one.value)
		}
	}
	first := works[some[0]].groups[kind]
	if run(ctx, func(ctx context.Context) error { return first.do(ctx, values) }) == nil {
		return
	}
	together(ctx, works, kind, some[:len(some)/2], failed)
	together(ctx, works, kind, some[len(some)/2:], failed)
}

// flushed lets work be put off again.
func (b *Batch) flushed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.flushing = false
}

// work has the collected changes.
type work struct {
	groups map[any]*group
	order  []any
	tasks  []task
}

// take empties the batch, and begins a flush.
func (b *Batch) take() work {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := work{b.groups, b.order, b.tasks}
	b.groups, b.order, b.tasks, b.flushing = nil, nil, nil, true
	return w
}

func (g *group) run(ctx context.Context) (failed []Failed) {
	err := g.runOf(ctx, func(string) bool { return true })
	if err == nil {
		return nil
	}
	var plugins []string
	for _, i := range g.items {
		if !slices.Contains(plugins, i.plugin) {
			plugins = append(plugins, i.plugin)
		}
	}
	for _, plugin := range plugins {
		if len(plugins) > 1 && ctx.Err() == nil {
			err = g.runOf(ctx, func(of string) bool { return of == plugin })
		}
		if err != nil {
			failed = append(failed, Failed{plugin, err})
		}
	}
	return failed
}

// runOf does the work of some plugins.
func (g *group) runOf(ctx context.Context, is func(plugin string) bool) error {
	var values []any
	for _, i := range g.items {
		if is(i.plugin) {
			values = append(values, i.value)
		}
	}
	return run(ctx, func(ctx context.Context) error { return g.do(ctx, values) })
}

var errEnded = errors.New("deferred work ended its goroutine")

// run turns a panic, which in a goroutine would end the program, into an error.
func run(ctx context.Context, do func(context.Context) error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("deferred work panicked: %v\n%s", v, debug.Stack())
		}
	}()
	return do(ctx)
}

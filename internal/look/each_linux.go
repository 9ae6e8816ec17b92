package look

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/internal/thread"
	"github.com/embedcni/cni/netns"
)

// Each reads n namespaces, as many at once as Go runs threads, and calls use
// exactly once for each. open returns the namespace of that number; it belongs to
// the caller, which may close it in use. If open or reading fails, use gets the
// error. When the context ends, use gets its cause for the rest.
//
// open and use are called from several goroutines. Each of these has a thread for
// itself, in the namespace of the process.
func Each(ctx context.Context, n int, open func(i int) (*netns.Handle, error), use func(i int, seen *Namespace, err error)) {
	e := &each{n: n, open: open, use: use}
	e.run(ctx, thread.OnTour)
}

// each is the work of several goroutines.
type each struct {
	n    int
	next atomic.Int64
	open func(i int) (*netns.Handle, error)
	use  func(i int, seen *Namespace, err error)
}

func (e *each) run(ctx context.Context, onTour func(func(*thread.Tour) error) error) {
	errs := make([]error, min(e.n, runtime.GOMAXPROCS(0)))
	var workers sync.WaitGroup
	for w := range errs {
		workers.Add(1)
		go func() {
			defer workers.Done()
			errs[w] = onTour(func(tour *thread.Tour) error { return e.work(ctx, tour) })
		}()
	}
	workers.Wait()
	for i, ok := e.take(); ok; i, ok = e.take() { // no worker has a thread
		e.use(i, nil, errors.Join(errs...))
	}
}

// take returns the next number, if there is one.
func (e *each) take() (int, bool) {
	i := int(e.next.Add(1)) - 1
	return i, i < e.n
}

// work reads namespaces until there are no more, or the thread is lost.
func (e *each) work(ctx context.Context, tour *thread.Tour) error {
	d := links.NewDialer(tour)
	for i, ok := e.take(); ok; i, ok = e.take() {
		seen, err := e.read(ctx, d, i)
		e.use(i, seen, err)
		if err := tour.Lost(); err != nil {
			return err
		}
	}
	return nil
}

func (e *each) read(ctx context.Context, d *links.Dialer, i int) (*Namespace, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	ns, err := e.open(i)
	if err != nil {
		return nil, err
	}
	c, err := d.Dial(ns)
	if err != nil {
		return nil, err
	}
	return readAndClose(ns, c)
}

package look

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/embedcni/cni/netns"
)

// Each reads n namespaces, as many at once as Go runs threads, and calls use
// exactly once for each, from several goroutines. open returns the namespace of
// that number; it belongs to the caller, which may close it in use. If open or
// reading fails, use gets the error. When the context ends, use gets its cause
// for the rest.
func Each(ctx context.Context, n int, open func(i int) (*netns.Handle, error), use func(i int, seen *Namespace, err error)) {
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(n, runtime.GOMAXPROCS(0)) {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				seen, err := one(ctx, i, open)
				use(i, seen, err)
			}
		}()
	}
	workers.Wait()
}

func one(ctx context.Context, i int, open func(i int) (*netns.Handle, error)) (*Namespace, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	ns, err := open(i)
	if err != nil {
		return nil, err
	}
	return Read(ns)
}

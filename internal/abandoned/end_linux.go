package abandoned

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/internal/parallel"
)

// EndWithin limits the time for which End waits. Tests on a busy machine allow it more.
var EndWithin = time.Second

// mostSteps is the number of steps of End: a removal that was begun is finished, the
// namespace is let go, and the container is removed. One is to spare.
const mostSteps = 4

// Tend does the next step for a container, as [Containers.Tend] does, but may wait for the
// container. It takes over host, and reports whether the container is on record no more.
type Tend func(ctx context.Context, host *hostns.NetNS) (step Step, ended bool, err error)

// End removes one abandoned container now, for a caller that needs something of it. It
// waits until the namespace that was let go has ended, and for a second in all; a plugin
// that takes longer goes on by itself. It returns false if the container stays: it is in
// use, or cannot be judged, or is not removed yet.
func End(ctx context.Context, host *hostns.NetNS, tend Tend) (ended bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, EndWithin)
	defer cancel()
	return end(ctx, host, &atomic.Int32{}, tend)
}

// end is End with another limit. It counts a step as stuck that takes longer.
func end(ctx context.Context, host *hostns.NetNS, stuck *atomic.Int32, tend Tend) (ended bool, err error) {
	watch, err := links.WatchAddresses(host.Handle) // before anything vanishes
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, watch.Close()) }()
	for range mostSteps {
		step, ended, err := tend.within(ctx, host, stuck)
		if ended || err != nil {
			return ended, err
		}
		if !step.Again {
			continue // a removal was finished, or it stays, as the next steps find too
		}
		if ended, err := vanish(ctx, host, watch, step.Ends); !ended || err != nil {
			return false, err
		}
	}
	return false, nil
}

// within is one step on another goroutine, for which it does not wait when ctx ends.
func (tend Tend) within(ctx context.Context, host *hostns.NetNS, stuck *atomic.Int32) (step Step, ended bool, err error) {
	own, err := host.Dup()
	if err != nil {
		return step, false, err
	}
	type outcome struct {
		step  Step
		ended bool
		err   error
	}
	done := make(chan outcome, 1)
	stuck.Add(1)
	go func() {
		defer stuck.Add(-1)
		var o outcome
		o.err = parallel.Try(func() (err error) {
			o.step, o.ended, err = tend(ctx, own)
			return err
		})
		done <- o
	}()
	select {
	case o := <-done:
		return o.step, o.ended, o.err
	case <-ctx.Done():
		return step, false, context.Cause(ctx)
	}
}

// vanish waits until interfaces on the host have vanished. It returns false if they have
// not in time.
func vanish(ctx context.Context, host *hostns.NetNS, watch *links.Listener, ends []int) (bool, error) {
	for {
		left, err := host.Lasting(ends)
		if err != nil || len(left) == 0 {
			return err == nil, err
		}
		if err := watch.Wait(ctx); err != nil {
			if ctx.Err() != nil {
				return false, nil
			}
			return false, err
		}
	}
}

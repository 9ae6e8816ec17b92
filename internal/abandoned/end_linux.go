package abandoned

import (
	"context"
	"errors"
	"time"

	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/links"
)

// endWithin limits the time for which End waits.
const endWithin = time.Second

// mostSteps is the number of steps of End: a removal that was begun is finished, the
// namespace is let go, and the container is removed. One is to spare.
const mostSteps = 4

// End removes one abandoned container now, for a caller that needs something of it. tend
// does the next step, as [Containers.Tend] does, but may wait for the container; it reports
// whether the container is on record no more. End waits until the namespace that it has
// let go has ended, and for a second in all. It returns false if the container stays: it
// is in use, or cannot be judged.
func End(ctx context.Context, host *hostns.NetNS, tend func(context.Context) (step Step, ended bool, err error)) (ended bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, endWithin)
	defer cancel()
	watch, err := links.WatchAddresses(host.Handle) // before anything vanishes
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, watch.Close()) }()
	for range mostSteps {
		step, ended, err := tend(ctx)
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

// vanish waits until interfaces on the host have vanished. It returns false if they have
// not in time.
func vanish(ctx context.Context, host *hostns.NetNS, watch *links.Watch, ends []int) (bool, error) {
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

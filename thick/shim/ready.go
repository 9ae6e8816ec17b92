package shim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/confwatch"
	"github.com/embedcni/cni/thick/internal/wire"
)

// pollEvery is the time between two questions to a daemon that is there and not ready, as
// Multus' shim asks. The daemon announces to nobody when that ends.
const pollEvery = 100 * time.Millisecond

// notReadyError: the daemon answers, and does not serve ADD.
type notReadyError struct {
	status int
	said   string
}

func (e *notReadyError) Error() string {
	return fmt.Sprintf("the daemon is not ready (status %d): %s", e.status, e.said)
}

// ready asks once whether the daemon serves ADD. Daemons before Multus v4.3.1 know only
// whether they are alive.
func (d *daemon) ready(ctx context.Context) error {
	status, said, err := d.post(ctx, wire.PathReady, []byte("null"))
	if err == nil && status == http404 {
		status, said, err = d.post(ctx, wire.PathHealth, []byte("null"))
	}
	if err == nil && status != http200 {
		err = &notReadyError{status, wire.DecodeError(status, said).Error()}
	}
	return err
}

// waitReady waits until the daemon serves ADD. A daemon that is not there yet is noticed
// when its socket appears.
func (d *daemon) waitReady(ctx context.Context, within time.Duration) error {
	bounded, cancel := context.WithTimeout(ctx, cmp.Or(within, DefaultReadyWithin))
	defer cancel()
	if within < 0 {
		bounded = ctx
	}
	err := d.ready(bounded)
	if within < 0 || !mayBecomeReady(err) {
		return err
	}
	appeared, stop := watchFor(d.socket)
	defer stop()
	for {
		if again := d.ready(bounded); bounded.Err() == nil || again == nil {
			err = again
		}
		if !mayBecomeReady(err) {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if bounded.Err() != nil {
			return types.NewError(types.ErrTryAgainLater, fmt.Sprintf("the daemon was not ready within %v", cmp.Or(within, DefaultReadyWithin)), err.Error())
		}
		// A socket has its name before its owner listens, and nothing announces that it does.
		select {
		case <-appeared:
		case <-time.After(pollEvery):
		case <-bounded.Done():
		}
	}
}

// mayBecomeReady reports whether a later question may have another answer.
func mayBecomeReady(err error) bool {
	return errors.Is(err, errGone) || errors.As(err, new(*notReadyError)) ||
		errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)
}

// watchFor watches the way to a file until stop is called. Changed says once that the watch
// has begun, and then that something has changed. Without a watch it says nothing.
func watchFor(path string) (changed <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	said, ended := make(chan struct{}, 1), make(chan struct{})
	watch := &confwatch.Watch{
		Sources: func() []confwatch.Source { return []confwatch.Source{{Path: path}} },
		Look: func() {
			select {
			case said <- struct{}{}:
			default:
			}
		},
		Failed: func(error) {},
	}
	go func() {
		defer close(ended)
		_ = watch.Run(ctx) // the caller polls
	}()
	return said, func() { cancel(); <-ended }
}

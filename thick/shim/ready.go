package shim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/thick/internal/wire"
)

// askEvery is the time between two questions to a daemon that is not there or not ready, as
// Multus' shim asks. Nothing announces that a daemon is ready, nor that a socket, which has
// its name before that, is listened at.
const askEvery = 100 * time.Millisecond

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

// waitReady waits until the daemon serves ADD. The first question is always asked.
func (d *daemon) waitReady(ctx context.Context, within time.Duration) error {
	if within < 0 {
		return d.ready(ctx)
	}
	within = cmp.Or(within, DefaultReadyWithin)
	end := time.Now().Add(within)
	bounded, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	err := d.ready(bounded)
	for mayBecomeReady(err) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if bounded.Err() != nil {
			return types.NewError(types.ErrTryAgainLater, fmt.Sprintf("the daemon was not ready within %v", within), err.Error())
		}
		select {
		case <-time.After(askEvery):
		case <-bounded.Done():
		}
		if again := d.ready(bounded); again == nil || bounded.Err() == nil && time.Now().Before(end) {
			err = again // else it is of the time that is over, of which a dial may hear first
		}
	}
	return err
}

// mayBecomeReady reports whether a later question may have another answer.
func mayBecomeReady(err error) bool {
	return errors.Is(err, errGone) || errors.As(err, new(*notReadyError)) ||
		errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)
}

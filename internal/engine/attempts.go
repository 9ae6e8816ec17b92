package engine

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// Retry says how often an ADD is tried; see cni.Retry.
type Retry struct {
	Attempts        int
	Delay, MaxDelay time.Duration
}

// transientWords returns words in errors that plugins return without a code of their
// own for transient failures: two containers that create a bridge or a chain at the
// same moment, and the lock of iptables. To take another error for transient costs one
// attempt.
func transientWords() []string {
	return []string{
		"file exists",
		"resource temporarily unavailable",
		"device or resource busy",
		"could not set bridge's mac", // after a first ADD that failed before the bridge had an address
		"another app is currently holding the xtables lock",
	}
}

// isTransient reports whether every failure is transient, and was undone.
func isTransient(err error) bool {
	var undone *rollbackError
	if errors.As(err, &undone) || errors.Is(err, ErrPortInUse) {
		return false
	}
	all := pluginErrors(err)
	for _, one := range all {
		var e *Error
		if !errors.As(one, &e) || !e.isTransient() {
			return false
		}
	}
	return len(all) > 0
}

// pause returns the delay before attempt n (2, 3, …). It is random, so that
// calls that collided do not collide again.
func (r Retry) pause(n int) time.Duration {
	delay, most := r.Delay, r.MaxDelay
	if delay == 0 {
		delay = 100 * time.Millisecond
	}
	if most == 0 {
		most = 5 * time.Second
	}
	for range n - 2 {
		delay = min(2*delay, most)
	}
	delay = min(delay, most)
	return delay/2 + rand.N(delay/2+1)
}

// waitFor waits for a time, or until the context ends.
func waitFor(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

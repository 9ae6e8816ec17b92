package cni

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
)

// Retry configures how often Setup repeats an attempt that failed with a
// transient error: code 11, "try again later", or the error of a plugin that has lost
// a race with another one for a bridge, a chain or the lock of iptables.
type Retry struct {
	Attempts int           // in total; 1 or less does not retry
	Delay    time.Duration // before the second attempt, doubling from then on; 100 ms if zero
	MaxDelay time.Duration // 5 s if zero; limits every delay, the first too
}

// WithRetry makes Setup retry. Each attempt starts from a clean state: Setup
// first detaches everything from the attempt before, and stops if that fails.
// Between attempts it waits for a random part of the delay, at most until the
// context ends.
func WithRetry(r Retry) Opt {
	return func(c *config) error {
		if r.Attempts < 0 || r.Delay < 0 || r.MaxDelay < 0 {
			return fmt.Errorf("retry %+v: negative: %w", r, ErrInvalidArgument)
		}
		c.retry = r
		return nil
	}
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
	if errors.As(err, &undone) {
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

func (e *Error) isTransient() bool {
	if e.Code == types.ErrTryAgainLater {
		return true
	}
	text := strings.ToLower(e.Msg + " " + e.Details)
	for _, words := range transientWords() {
		if strings.Contains(text, words) {
			return true
		}
	}
	return false
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

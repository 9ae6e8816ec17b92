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

// Retry says how often Setup tries again when a plugin fails with something
// that is known to pass: code 11, "try again later", and what transientWords
// lists.
type Retry struct {
	Attempts int           // in all; 1 or less does not try again
	Delay    time.Duration // before the second attempt, doubling from then on; 100 ms if zero
	MaxDelay time.Duration // 5 s if zero; no delay is longer, the first neither
}

// WithRetry makes Setup try again. Each attempt begins from nothing: what the
// one before has done is detached first, and if that fails there is no other.
// Between them Setup waits, a random part of the delay, and no longer than the
// context allows.
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

// pause is how long to wait before attempt n (2, 3, …), with jitter so that
// those who met once do not meet again.
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

// wait returns when the pause is over, or the context is.
func (r Retry) wait(ctx context.Context, n int) error {
	timer := time.NewTimer(r.pause(n))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

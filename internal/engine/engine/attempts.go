package engine

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/outcome"
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
	if errors.As(err, new(*rollbackError)) || errors.Is(err, outcome.ErrPortInUse) {
		return false
	}
	all := pluginErrors(err)
	for _, e := range all {
		text := strings.ToLower(e.Msg + " " + e.Details)
		if e.Code != types.ErrTryAgainLater && !slices.ContainsFunc(transientWords(), func(words string) bool { return strings.Contains(text, words) }) {
			return false
		}
	}
	return len(all) > 0
}

// pause returns the delay before attempt n (2, 3, …). It is random, so that
// calls that collided do not collide again.
func (r Retry) pause(n int) time.Duration {
	delay, most := cmp.Or(r.Delay, 100*time.Millisecond), cmp.Or(r.MaxDelay, 5*time.Second)
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

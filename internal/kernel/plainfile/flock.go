package plainfile

import (
	"context"
	"fmt"
	"os"
	"time"
)

// The kernel has no wait for a lock that a context ends, so Flock asks for it repeatedly.
// A holder needs about a millisecond.
const (
	firstPause = 100 * time.Microsecond
	lastPause  = 5 * time.Millisecond
)

// Flock takes the lock of an open file, which ends with it. It waits until the context
// ends.
func Flock(ctx context.Context, f *os.File, exclusive bool) error {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		if ok, err := tryFlock(f, exclusive); ok || err != nil {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("another process holds it: %w", context.Cause(ctx))
		}
	}
}

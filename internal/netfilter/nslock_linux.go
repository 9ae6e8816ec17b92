package netfilter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lockNamespace takes a lock that there is one of for the network namespace of
// the calling thread, for every process of the machine, whatever else it can
// see: that of the file that is the namespace. It waits until the context ends.
// The lock goes with the process.
func lockNamespace(ctx context.Context) (unlock func() error, err error) {
	f, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("lock the network namespace: %w", err)
	}
	if err := flock(ctx, f); err != nil {
		return nil, errors.Join(fmt.Errorf("lock the network namespace, in which another makes shared rules: %w", err), f.Close())
	}
	return f.Close, nil
}

// flock takes the exclusive lock of a file. It waits for it until the context
// ends.
func flock(ctx context.Context, f *os.File) error {
	// A thread that waits in the kernel could not be called back. Whoever has
	// the lock has it for some milliseconds.
	const pause = time.Millisecond
	timer := time.NewTicker(pause)
	defer timer.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
		}
	}
}

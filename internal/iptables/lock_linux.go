package iptables

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/netns"
)

// LockNamespace takes the lock of a network namespace, nil for the calling thread's: the
// lock on its file, which every process of the machine sees. It waits until the context
// ends. The lock ends with the process.
func LockNamespace(ctx context.Context, ns *netns.Handle, exclusive bool) (unlock func() error, err error) {
	path, how := "/proc/thread-self/ns/net", unix.LOCK_SH
	if ns != nil {
		path = fmt.Sprintf("/proc/thread-self/fd/%d", ns.File().Fd()) // opened anew: the lock is the opening's
	}
	if exclusive {
		how = unix.LOCK_EX
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("lock the network namespace: %w", err)
	}
	if err := flock(ctx, f, how); err != nil {
		return nil, errors.Join(fmt.Errorf("lock the network namespace, in which another process makes shared rules: %w", err), f.Close())
	}
	return f.Close, nil
}

// flock takes the lock of a file. It waits until the context ends.
func flock(ctx context.Context, f *os.File, how int) error {
	// A thread that waits in the kernel cannot be interrupted, so this polls. The
	// holder has the lock for some milliseconds.
	const pause = time.Millisecond
	var timer *time.Ticker
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return err
		}
		if timer == nil {
			timer = time.NewTicker(pause)
			defer timer.Stop()
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
		}
	}
}

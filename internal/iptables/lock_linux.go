package iptables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// LockNamespace takes the lock of the calling thread's network namespace: the
// lock on its file, which every process of the machine sees. It waits until the
// context ends. The lock ends with the process.
func LockNamespace(ctx context.Context) (unlock func() error, err error) {
	f, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("lock the network namespace: %w", err)
	}
	if err := flock(ctx, f); err != nil {
		return nil, errors.Join(fmt.Errorf("lock the network namespace, in which another process makes shared rules: %w", err), f.Close())
	}
	return f.Close, nil
}

// flock takes the exclusive lock of a file. It waits until the context ends.
func flock(ctx context.Context, f *os.File) error {
	// A thread that waits in the kernel cannot be interrupted, so this polls. The
	// holder has the lock for some milliseconds.
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

// LockTools takes the lock of the legacy tools. The returned tool's processes
// lock a file of their own instead. A tool that is too old for that (before
// iptables 1.8.5) fails, because the lock is taken.
func (x Tool) LockTools(ctx context.Context) (_ Tool, unlock func() error, err error) {
	path := cmp.Or(os.Getenv(lockFileVariable), "/run/xtables.lock")
	f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return x, nil, fmt.Errorf("lock xtables: %w", err)
	}
	if err := flock(ctx, f); err != nil {
		return x, nil, errors.Join(fmt.Errorf("lock xtables: %w", err), f.Close())
	}
	own, err := unix.MemfdCreate("xtables.lock", unix.MFD_CLOEXEC) // leaves nothing behind if a process is killed
	if err != nil {
		return x, nil, errors.Join(fmt.Errorf("lock xtables: %w", err), f.Close())
	}
	x.lockFile = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), own)
	return x, func() error { return errors.Join(unix.Close(own), f.Close()) }, nil
}

// lockFileVariable names the file that the legacy tools lock.
const lockFileVariable = "XTABLES_LOCKFILE"

// env returns the environment of a tool; nil is this process's.
func (x Tool) env() []string {
	if x.lockFile == "" {
		return nil
	}
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, lockFileVariable+"=") })
	return append(env, lockFileVariable+"="+x.lockFile)
}

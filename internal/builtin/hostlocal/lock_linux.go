package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/plainfile"
)

// The kernel has no wait for a lock that a context ends, so host-local asks for
// the lock repeatedly. A holder needs about a millisecond. Only one goroutine of
// the process asks; the others wait for their turn.
const (
	firstPause = 100 * time.Microsecond
	lastPause  = 5 * time.Millisecond
)

// directory is the directory of a network, with an index of its files.
type directory struct {
	path string
	turn chan struct{} // holds one token while a goroutine has, or waits for, the lock
	memo index         // may be used during the turn
}

func newDirectory(path string) *directory {
	return &directory{path: path, turn: make(chan struct{}, 1)}
}

// held is a directory that this process has locked against all others.
type held struct {
	*directory
	lock     *os.File
	changed  bool
	claim    func(netip.Addr)   // tells the runtime before a file is made; may be nil
	prepared *plainfile.Unnamed // for the first reservation; may be nil
}

// acquire locks the directory. With create it creates it first; otherwise it
// fails with [fs.ErrNotExist] if the directory is missing.
func (d *directory) acquire(ctx context.Context, create bool) (*held, error) {
	select {
	case d.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the lock of %s: %w", d.path, context.Cause(ctx))
	}
	h, err := d.open(ctx, create)
	if err != nil {
		<-d.turn
		return nil, err
	}
	if d.memo.known() { // before a change of this process hides those of others
		if err := d.memo.refresh(d.path); err != nil {
			return nil, errors.Join(err, h.release())
		}
	}
	return h, nil
}

func (d *directory) open(ctx context.Context, create bool) (*held, error) {
	for {
		if create {
			if err := os.MkdirAll(d.path, 0o755); err != nil {
				return nil, fmt.Errorf("directory of the addresses: %w", err)
			}
		}
		lock, current, err := d.openLocked(ctx)
		if err == nil && current {
			return &held{directory: d, lock: lock}, nil
		}
		if lock != nil {
			err = errors.Join(err, lock.Close())
		}
		if create && errors.Is(err, fs.ErrNotExist) {
			continue // it was removed between MkdirAll and open
		}
		if err != nil {
			return nil, err
		}
	}
}

// openLocked opens and locks the file, and reports whether it is still the one
// that others will lock: it may have been deleted meanwhile.
func (d *directory) openLocked(ctx context.Context) (lock *os.File, current bool, err error) {
	path := filepath.Join(d.path, "lock")
	if lock, err = plainfile.Open(path, os.O_CREATE|os.O_RDONLY, 0o750); err != nil {
		return nil, false, err
	}
	if err := flock(ctx, int(lock.Fd())); err != nil {
		return lock, false, fmt.Errorf("lock %s: %w", path, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(lock.Fd()), &st); err != nil {
		return lock, false, err
	}
	return lock, st.Nlink > 0, nil
}

// flock locks, unless the context ends before.
func flock(ctx context.Context, fd int) error {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
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

// release unlocks the directory, after it has updated the index with its own
// changes.
func (h *held) release() error {
	if h.changed && h.memo.known() {
		h.memo.stamp = mark(h.path)
	}
	err := h.lock.Close() // closing unlocks: nobody else has the description
	<-h.turn
	return err
}

// retry repeats a system call that a signal interrupts.
func retry[T any](call func() (T, error)) (T, error) {
	for {
		if v, err := call(); !errors.Is(err, unix.EINTR) {
			return v, err
		}
	}
}

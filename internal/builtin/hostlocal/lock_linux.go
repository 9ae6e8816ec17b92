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
	dir, lock int // descriptors
	changed   bool
	claim     func(netip.Addr)   // tells the runtime before a file is made; may be nil
	prepared  *plainfile.Unnamed // for the first reservation; may be nil
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
		if err := h.refresh(); err != nil {
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
		h := &held{directory: d, dir: -1, lock: -1}
		current, err := h.openLocked(ctx)
		if err == nil && current {
			return h, nil
		}
		err = errors.Join(err, h.close())
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
func (h *held) openLocked(ctx context.Context) (current bool, err error) {
	if h.dir, err = retry(func() (int, error) {
		return unix.Open(h.path, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}); err != nil {
		return false, &fs.PathError{Op: "open", Path: h.path, Err: err}
	}
	if h.lock, err = retry(func() (int, error) {
		return unix.Openat(h.dir, "lock", unix.O_CREAT|unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o750)
	}); err != nil {
		return false, &fs.PathError{Op: "open", Path: filepath.Join(h.path, "lock"), Err: err}
	}
	if err := flock(ctx, h.lock); err != nil {
		return false, fmt.Errorf("lock %s: %w", filepath.Join(h.path, "lock"), err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(h.lock, &st); err != nil {
		return false, err
	}
	return st.Nlink > 0, nil
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

// refresh ensures that all files are known.
func (h *held) refresh() error {
	if err := h.memo.refresh(h.dir); err != nil {
		return fmt.Errorf("look into %s: %w", h.path, err)
	}
	return nil
}

// reread ensures that all files are known, including rewritten ones.
func (h *held) reread() error {
	if err := h.memo.reread(h.dir); err != nil {
		return fmt.Errorf("look into %s: %w", h.path, err)
	}
	return nil
}

// release unlocks the directory, after it has updated the index with its own
// changes.
func (h *held) release() error {
	if h.changed && h.memo.known() {
		h.memo.stamp = mark(h.dir)
	}
	err := h.close()
	<-h.turn
	return err
}

// close closes the descriptors. Closing unlocks: nobody else has the description.
func (h *held) close() error {
	var errs []error
	for _, fd := range []*int{&h.lock, &h.dir} {
		if *fd >= 0 {
			errs = append(errs, unix.Close(*fd))
			*fd = -1
		}
	}
	return errors.Join(errs...)
}

// retry repeats a system call that a signal interrupts.
func retry[T any](call func() (T, error)) (T, error) {
	for {
		if v, err := call(); !errors.Is(err, unix.EINTR) {
			return v, err
		}
	}
}

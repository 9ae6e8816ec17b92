package lock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/plainfile"
)

// span is one byte of the lock file and the way it is locked.
type span struct {
	offset int64
	shared bool
}

// waits tracks the spans for which a thread of this process waits in the kernel.
// One thread for each is enough: a hundred shared claims behind another
// process's exclusive one would block a hundred threads, and so would a caller
// that retries with short deadlines.
type waits struct {
	mu sync.Mutex
	m  map[span]chan struct{} // closed when the wait is over
}

// hasFile reports that keys are locked in a file.
const hasFile = true

// lockFile takes the claims in order, on a file description of its own. Without wait it
// returns nil if any key is taken. It creates the file if create is os.O_CREATE. If that is 0
// and the file is missing, the error is fs.ErrNotExist.
//
// Closing the file unlocks the keys taken so far, unless an abandoned wait still has the
// description open.
func (s *Space) lockFile(ctx context.Context, claims []claim, wait bool, create int) (*os.File, error) {
	for {
		f, err := openFile(s.path, os.O_RDWR|create)
		if err != nil {
			return nil, fmt.Errorf("lock %s: %w: %w", describe(claims), ErrUnavailable, err)
		}
		for _, c := range claims {
			if ok, err := s.lockKey(ctx, f, c, wait); err != nil {
				return nil, joined.Errors(fmt.Errorf("lock %q in %s: %w", c.name, s.path, err), unlockFile(f))
			} else if !ok {
				return nil, unlockFile(f)
			}
		}
		current, err := isCurrent(f, s.path)
		if err == nil && current {
			return f, nil
		}
		if err := joined.Errors(err, unlockFile(f)); err != nil {
			return nil, fmt.Errorf("lock %s: %w: %w", describe(claims), ErrUnavailable, err)
		}
		// The file was deleted between open and lock. A lock on it excludes no
		// newcomer.
	}
}

// lockKey takes one key, and reports whether it did. The kernel grants shared locks past a
// waiting exclusive one, so overlapping ADDs of one process would keep another process's GC
// out for ever. The gate, the byte after the key's, prevents that: a caller that
// wants the key shared locks and unlocks the gate first, even if it does not wait, and a
// caller that waits for the key exclusively holds it.
func (s *Space) lockKey(ctx context.Context, f *os.File, c claim, wait bool) (bool, error) {
	key, gate := span{offset: c.offset, shared: c.shared}, span{offset: c.offset | 1, shared: c.shared}
	if !c.shared {
		if ok, err := tryLock(f, key); ok || err != nil || !wait {
			return ok, err
		}
	}
	for _, sp := range []span{gate, key} {
		if wait {
			if err := s.lockSpan(ctx, f, sp); err != nil {
				return false, err
			}
		} else if ok, err := tryLock(f, sp); !ok || err != nil {
			return false, err
		}
	}
	return true, unlockSpan(f, gate.offset, 1)
}

// lockSpan takes one byte, and waits for it if necessary.
func (s *Space) lockSpan(ctx context.Context, f *os.File, sp span) error {
	for {
		if ok, err := tryLock(f, sp); ok || err != nil {
			return err
		}
		over, first := s.waits.join(sp)
		var result chan error
		if first {
			// A duplicate shares the description, and with it the lock. The waiting
			// goroutine always closes it: if the caller is still there, the lock
			// stays with f; if the caller has given up and closed f, the lock goes
			// with this last descriptor.
			dup, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				s.waits.done(sp, over)
				return fmt.Errorf("%w: duplicate the lock file: %w", ErrUnavailable, err)
			}
			result = make(chan error, 1)
			go func() {
				result <- joined.Errors(waitLock(dup, sp), unix.Close(dup))
				s.waits.done(sp, over)
			}()
		}
		select {
		case err := <-result: // nil, and never ready, if another goroutine waits
			return err
		case <-over: // perhaps free now
			if result != nil {
				return <-result
			}
		case <-ctx.Done():
			return fmt.Errorf("held by another process: %w", ended(ctx))
		}
	}
}

// join returns a channel that is closed when the wait for sp is over, and
// reports whether the caller has to do the waiting.
func (w *waits) join(sp span) (over chan struct{}, first bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if over, ok := w.m[sp]; ok {
		return over, false
	}
	if w.m == nil {
		w.m = make(map[span]chan struct{})
	}
	over = make(chan struct{})
	w.m[sp] = over
	return over, true
}

func (w *waits) done(sp span, over chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.m, sp)
	close(over)
}

// openFile opens a file to lock it. With os.O_CREATE it creates the file and its
// parents if they are missing. Shared locks need read access, exclusive ones write
// access.
func openFile(path string, flags int) (*os.File, error) {
	f, err := plainfile.Open(path, flags, 0o600)
	if flags&os.O_CREATE == 0 || !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	return plainfile.Open(path, flags, 0o600)
}

// isCurrent reports whether f is still the file at path.
func isCurrent(f *os.File, path string) (bool, error) {
	mine, err := f.Stat()
	if err != nil {
		return false, err
	}
	now, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return os.SameFile(mine, now), nil
}

func tryLock(f *os.File, sp span) (bool, error) {
	err := fcntl(f.Fd(), unix.F_OFD_SETLK, sp.flock())
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return true, nil
}

// waitLock blocks a thread until the byte is free.
func waitLock(fd int, sp span) error {
	if err := fcntl(uintptr(fd), unix.F_OFD_SETLKW, sp.flock()); err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return nil
}

// unlockFile releases all locks on f, for its inheritors as well, and closes it.
func unlockFile(f *os.File) error {
	return joined.Errors(unlockSpan(f, 0, 0), f.Close())
}

// unlockSpan releases length bytes; 0 means all to the end.
func unlockSpan(f *os.File, offset, length int64) error {
	lk := &unix.Flock_t{Type: unix.F_UNLCK, Whence: io.SeekStart, Start: offset, Len: length}
	if err := fcntl(f.Fd(), unix.F_OFD_SETLK, lk); err != nil {
		return fmt.Errorf("unlock %s: %w", f.Name(), err)
	}
	return nil
}

func (sp span) flock() *unix.Flock_t {
	kind := int16(unix.F_WRLCK)
	if sp.shared {
		kind = unix.F_RDLCK
	}
	return &unix.Flock_t{Type: kind, Whence: io.SeekStart, Start: sp.offset, Len: 1}
}

// fcntl repeats the call when a signal interrupts it: the Go runtime sends
// signals to its own threads.
func fcntl(fd uintptr, cmd int, lk *unix.Flock_t) error {
	for {
		if err := unix.FcntlFlock(fd, cmd, lk); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/plainfile"
)

// directory is the directory of a network, with an index of its files.
type directory struct {
	path string
	turn chan struct{} // holds one token while a goroutine has, or asks for, the lock
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
		lock, err := Lock(ctx, d.path)
		if create && errors.Is(err, fs.ErrNotExist) {
			continue // it was removed after MkdirAll
		}
		if err != nil {
			return nil, err
		}
		return &held{directory: d, lock: lock}, nil
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

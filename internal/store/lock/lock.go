// Package lock excludes concurrent operations on the same key, between the
// goroutines of a process and between processes.
//
// All keys of a Space share one file. A key is one byte of it, chosen by a hash
// and locked with an open file description lock (fcntl(2), F_OFD_SETLK), so
// there is no file per key to create or to delete at the right moment. Nothing
// is ever written to the file.
//
// Such a lock belongs to the open file, not to the process. It ends when the
// last process that has the file open ends: a killed process releases its locks,
// unless a child that inherited the file (Held.File) still runs.
//
// A second file, beside the first, records live processes. It is never
// inherited: a process locks one byte of it for its lifetime (Life), and the
// byte of each key while it holds that key exclusively. So a key that is locked
// only in the first file is held by processes that inherited it from one that
// has ended (State), or by a process of an earlier version, which has no such
// file, or by one that could not use it.
//
// Off Linux only the goroutines of one process are kept apart.
package lock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/embedcni/cni/internal/kernel/joined"
)

// ErrUnavailable means that the lock file could not be used: its directory
// cannot be written, the disk is full, or the file system has no locks. The
// cause is wrapped too. Operations that must continue anyway use LockLocal.
var ErrUnavailable = errors.New("lock file unavailable")

// Key is one thing to be locked. Shared holders of a name exclude only exclusive
// ones.
type Key struct {
	Name   string
	Shared bool
}

// Space is a set of keys that lives in one file. It may be used by any number
// of goroutines, and several Spaces may use one file.
type Space struct {
	path  string
	local queue
	waits waits
	life  life
}

// State is the kind of holder that a key has.
type State int

const (
	Free      State = iota // nobody
	Kept                   // by a live process
	Inherited              // by the heirs of a dead process, or by a process of an earlier version
)

// Open returns the space of the lock file at path. It touches nothing. The first
// lock creates the files (mode 0600) and their parents (0700). The lock file
// must not be deleted while a lock is held: the next caller would lock a new
// file and not see the locks of the old one. A caller that is still waiting
// notices this and changes to the new file.
func Open(path string) *Space {
	return &Space{path: path}
}

// Path returns the path of the lock file.
func (s *Space) Path() string { return s.path }

// livesPath returns the path of the file that records live processes.
func (s *Space) livesPath() string { return filepath.Join(filepath.Dir(s.path), "alive") }

// Lock takes the key of that name exclusively. See LockAll.
func (s *Space) Lock(ctx context.Context, name string) (*Held, error) {
	return s.LockAll(ctx, []Key{{Name: name}})
}

// LockAll takes all keys, or none and returns an error. The keys may come in any
// order and more than once (exclusive wins). They are always taken in the same
// order, so two LockAll never wait for each other. A caller that holds one Held
// and asks for another gives up that guarantee.
//
// Within the process, keys are handed out in the order of the requests, and no
// later shared request overtakes a waiting exclusive one. Between processes, a
// waiting exclusive request stops new shared ones as well; otherwise the kernel
// decides the order.
//
// When ctx ends first, LockAll returns at once, with an error that names the key
// and satisfies errors.Is for the reason. If another process held the key, one
// thread per key stays behind in the kernel until that process is done. Later
// callers share that thread.
//
// An error that satisfies errors.Is(err, ErrUnavailable) means that the file
// cannot be used.
func (s *Space) LockAll(ctx context.Context, keys []Key) (*Held, error) {
	held, err := s.LockLocal(ctx, keys)
	if err != nil {
		return nil, err
	}
	return held.inFile(ctx, true, os.O_CREATE)
}

// inFile locks the keys, which this process has locally, in the file too. Without
// wait it returns nil if any is taken.
func (h *Held) inFile(ctx context.Context, wait bool, create int) (*Held, error) {
	f, err := h.space.lockFile(ctx, h.claims, wait, create)
	if err != nil || f == nil && hasFile {
		return nil, joined.Errors(err, h.Release())
	}
	h.file, h.marked = f, h.space.mark(h.claims)
	return h, nil
}

// TryLockAll takes all keys if it need not wait, and otherwise returns nil and
// no error. It makes nobody wait. Errors are those of LockAll.
func (s *Space) TryLockAll(keys []Key) (*Held, error) {
	return s.try(keys, os.O_CREATE)
}

// TryExisting is TryLockAll for work in the background: if the lock file is missing,
// it returns nil rather than create it in a directory that is being deleted.
func (s *Space) TryExisting(keys []Key) (*Held, error) {
	held, err := s.try(keys, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return held, err
}

func (s *Space) try(keys []Key, create int) (*Held, error) {
	held := &Held{space: s}
	for _, c := range claimsOf(keys) {
		if !s.local.try(c) {
			return nil, held.Release()
		}
		held.claims = append(held.claims, c)
	}
	return held.inFile(context.Background(), false, create)
}

// LockLocal takes the keys within this process only. It is for a teardown that
// must continue when the state directory cannot be written. It does not exclude
// other processes.
func (s *Space) LockLocal(ctx context.Context, keys []Key) (*Held, error) {
	claims := claimsOf(keys)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("lock %s: %w", describe(claims), ended(ctx))
	}
	for i, c := range claims {
		if err := s.local.acquire(ctx, c); err != nil {
			s.local.releaseAll(claims[:i])
			return nil, err
		}
	}
	return &Held{space: s, claims: claims}, nil
}

// Held is a set of locked keys.
type Held struct {
	space  *Space
	claims []claim
	file   *os.File
	marked *os.File // the file in which the claims are marked; nil if they are not
	once   sync.Once
}

// File returns the open lock file, for a child process to inherit through
// exec.Cmd's ExtraFiles; it is closed in other children. The keys then stay
// locked while that child has the file, even if this process is killed. File is
// nil after LockLocal and off Linux. Release closes it.
func (h *Held) File() *os.File {
	return h.file
}

// Release gives all keys back. It unlocks them rather than only closing the
// file, so a child that still has the file does not keep them. Only the first
// call has an effect; later ones return nil. The keys are free within this
// process even if Release returns an error.
func (h *Held) Release() error {
	var err error
	h.once.Do(func() {
		if h.file != nil {
			err = unlockFile(h.file)
		}
		unmark(h.marked, h.claims)
		h.space.local.releaseAll(h.claims)
	})
	return err
}

// claim is a key together with the byte that stands for it.
type claim struct {
	offset int64
	shared bool
	name   string
}

// claimsOf sorts the keys into the one order in which everybody takes them. It
// compares offsets, not names: two names on one byte are one lock to the kernel,
// and must be one here, or the second would wait for the first for ever.
func claimsOf(keys []Key) []claim {
	claims := make([]claim, 0, len(keys))
	for _, k := range keys {
		claims = append(claims, claim{offset: Byte(k.Name), shared: k.Shared, name: k.Name})
	}
	slices.SortFunc(claims, func(a, b claim) int {
		switch {
		case a.offset != b.offset:
			return cmp.Compare(a.offset, b.offset)
		case a.shared == b.shared:
			return 0
		case b.shared: // keep the exclusive one, which comes first
			return -1
		}
		return 1
	})
	return slices.CompactFunc(claims, func(a, b claim) bool { return a.offset == b.offset })
}

// First returns the name of the key that is taken before all others. A caller
// that holds only this key may lock others one by one: nobody waits for First
// while holding another key.
const First = "barrier"

// Byte returns the byte of the lock file that stands for a name: an even one below
// 2^63; see [Space.State]. The odd byte after it is the gate of shared and exclusive holders (see
// kernel_linux.go). That leaves 62 bits of hash: among 10,000 names in use at
// the same time, two share a byte with a probability of 10,000²/2^63, one in
// 10^11. Those two would then exclude each other needlessly, no more.
func Byte(name string) int64 {
	if name == First {
		return 0 // keys are taken in the order of their offsets
	}
	h := fnv.New64a()
	h.Write([]byte(name)) // never returns an error
	return int64(h.Sum64()>>1) &^ 1
}

// describe names the keys in an error, and shortens a long list.
func describe(claims []claim) string {
	switch len(claims) {
	case 0:
		return "nothing"
	case 1:
		return fmt.Sprintf("%q", claims[0].name)
	}
	return fmt.Sprintf("%q and %d more", claims[0].name, len(claims)-1)
}

// ended returns the error of ctx, with its cause if that is another.
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

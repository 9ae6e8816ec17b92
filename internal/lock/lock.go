// Package lock keeps operations on the same key apart, between the goroutines
// of a process and between processes.
//
// All keys of a Space share one file. A key is one byte of it, chosen by a hash
// and locked with an open file description lock (fcntl(2), F_OFD_SETLK), so
// there is no file per key to create, to delete at the right moment, or to
// forget. Nothing is ever written to the file.
//
// Such a lock belongs to the open file, not to the process. Hence it is gone
// when the last process that has the file open is gone, and not before: a
// process that was killed frees its locks, unless a child inherited the file
// (Held.File) and still runs.
//
// A second file, beside the first, says who lives. It is never inherited: a
// process locks a byte of it for its lifetime (Life), and the byte of each key
// that it has locked exclusively for as long as it has it. So a key that is
// locked in the first file only is kept by processes that inherited it from one
// that has ended (State); or by one of an earlier version, which has no such
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
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// ErrUnavailable means that the lock file could not be used: its directory
// cannot be written, the disk is full, the file system has no locks. The cause
// is wrapped too. Operations that must go on all the same use LockLocal.
var ErrUnavailable = errors.New("lock file unavailable")

// Key is one thing to be locked. Shared holders of a name exclude exclusive
// ones and nobody else.
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

// State says who has a key.
type State int

const (
	Free      State = iota // nobody
	Kept                   // a process that lives
	Inherited              // who inherited it, or a process of an earlier version
)

// Open returns the space of the lock file at path. Nothing is touched before
// the first lock, which creates the files (mode 0600) and their parents (0700).
// The lock file must not be deleted while somebody holds a lock: the next one to
// come would lock a new file and not see the old one's locks. Somebody who is
// still waiting notices and changes over to the new file.
func Open(path string) *Space {
	return &Space{path: path}
}

// Path is the lock file's.
func (s *Space) Path() string { return s.path }

// livesPath is that of the file that says who lives.
func (s *Space) livesPath() string { return filepath.Join(filepath.Dir(s.path), "alive") }

// Byte is the byte of the lock file that stands for a name. See State.
func Byte(name string) int64 { return offsetOf(name) }

// Lock takes the key of that name exclusively. See LockAll.
func (s *Space) Lock(ctx context.Context, name string) (*Held, error) {
	return s.LockAll(ctx, []Key{{Name: name}})
}

// LockAll takes all keys, or none and returns an error. The keys may come in
// any order and more than once (exclusive wins): they are taken in one order
// everywhere, so two LockAll never wait for each other. A caller that holds
// one Held and asks for another gives that up.
//
// Within the process the keys are handed out in the order in which they were
// asked for, and a waiting exclusive holder lets no later shared one overtake.
// Between processes a waiting exclusive holder stops new shared ones as well,
// otherwise the order is the kernel's.
//
// When ctx ends first, LockAll returns at once, with an error that says which
// key was waited for and satisfies errors.Is for the reason. If it was another
// process that had the key, one thread per key stays behind in the kernel until
// that process is done; later callers share it, so they do not add up.
//
// An error that satisfies errors.Is(err, ErrUnavailable) means that the file
// cannot be used.
func (s *Space) LockAll(ctx context.Context, keys []Key) (*Held, error) {
	held, err := s.LockLocal(ctx, keys)
	if err != nil {
		return nil, err
	}
	held.file, err = s.lockFile(ctx, held.claims)
	if err != nil {
		return nil, errors.Join(err, held.Release())
	}
	held.marked = s.mark(held.claims)
	return held, nil
}

// TryLockAll takes all keys if that needs no waiting, and otherwise returns nil
// and no error. It keeps nobody waiting. Errors are those of LockAll.
func (s *Space) TryLockAll(keys []Key) (*Held, error) {
	held := &Held{space: s}
	for _, c := range claimsOf(keys) {
		if !s.local.try(c) {
			return nil, held.Release()
		}
		held.claims = append(held.claims, c)
	}
	f, err := s.tryFile(held.claims)
	if err != nil || f == nil && hasFile {
		return nil, errors.Join(err, held.Release())
	}
	held.file, held.marked = f, s.mark(held.claims)
	return held, nil
}

// LockLocal takes the keys within this process only. It is for a teardown that
// has to go on when the state directory cannot be written; other processes are
// not kept out.
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
	marked *os.File // on which the claims are marked; nil if they are not
	once   sync.Once
}

// File is the open lock file, for a child process to inherit (exec.Cmd's
// ExtraFiles; it is closed in other children): then the keys stay locked while
// that child has it, even if this process is killed. It is nil
// after LockLocal and off Linux. It is closed by Release.
func (h *Held) File() *os.File {
	return h.file
}

// Release gives all keys back. They are unlocked, not only closed, so a child
// that still has the file does not keep them. Only the first call does
// something; the others return nil. The keys are free within this process
// whatever the error says.
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

// claimsOf puts the keys into the one order in which everybody takes them.
// They are told apart by offset, not by name: two names on one byte are one
// lock to the kernel, and must be one here, or the second would wait for the
// first for ever.
func claimsOf(keys []Key) []claim {
	claims := make([]claim, 0, len(keys))
	for _, k := range keys {
		claims = append(claims, claim{offset: offsetOf(k.Name), shared: k.Shared, name: k.Name})
	}
	slices.SortFunc(claims, func(a, b claim) int {
		switch {
		case a.offset != b.offset:
			return cmp.Compare(a.offset, b.offset)
		case a.shared == b.shared:
			return 0
		case b.shared: // the exclusive one first: it is the one that is kept
			return -1
		}
		return 1
	})
	return slices.CompactFunc(claims, func(a, b claim) bool { return a.offset == b.offset })
}

// First is the name of the key that is taken before all others. A caller that holds
// only this key may lock others one by one: nobody waits for First while holding
// another key.
const First = "barrier"

// offsetOf is the byte that stands for a name: an even one below 2^63; the odd
// one after it is the gate of shared and exclusive holders (see kernel_linux.go).
// That leaves 62 bits of hash: among 10,000 names in use at the same time two
// share a byte with a probability of 10,000²/2^63, one in 10^11. Those two would
// then exclude each other without need, no more.
func offsetOf(name string) int64 {
	if name == First {
		return 0 // keys are taken in the order of their offsets
	}
	h := fnv.New64a()
	h.Write([]byte(name)) // never returns an error
	return int64(h.Sum64()>>1) &^ 1
}

// describe names the keys in an error; a long list helps nobody.
func describe(claims []claim) string {
	switch len(claims) {
	case 0:
		return "nothing"
	case 1:
		return fmt.Sprintf("%q", claims[0].name)
	}
	return fmt.Sprintf("%q and %d more", claims[0].name, len(claims)-1)
}

// ended is why ctx is over: its own error, and the cause if it has another.
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

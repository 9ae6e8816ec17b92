package lock

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/plainfile"
)

// life is the description of the file of lives that this Space keeps open. No
// child inherits it, so its locks end with this process, whatever children it
// has, and with its program if it executes another.
//
// Two kinds of byte are locked in the file: one odd byte, chosen at random,
// while the Space exists, and the even bytes of the keys that the Space holds
// exclusively. The locks are shared ones. So the next holder of a key may mark
// it before the last one has unmarked it, and the file is open for reading only,
// so that its file system can be made read-only.
type life struct {
	mu   sync.Mutex
	file *os.File
	info os.FileInfo
	own  span

	// earlier are descriptions of deleted files. They stay open, because their
	// inode numbers are on record and would be used again.
	earlier []*os.File
}

// Life locks a byte while this Space exists, at most as long as this process and
// its program, and returns the byte's name. Lives reports whether it is still
// locked. The file is beside the lock file and must not be deleted either; if it
// is, the next call returns another name.
func (s *Space) Life() (string, error) {
	s.life.mu.Lock()
	defer s.life.mu.Unlock()
	if err := s.life.reach(s.livesPath()); err != nil {
		return "", fmt.Errorf("lock a byte of %s for the lifetime of this process: %w: %w", s.livesPath(), ErrUnavailable, err)
	}
	return fmt.Sprintf("%d:%d", inode(s.life.info), s.life.own.offset), nil
}

// Lives reports whether the byte of that name, which Life returned in this or
// another process, is still locked. If the file has been deleted since, the
// answer is not known: the byte may be locked in the deleted file.
func (s *Space) Lives(name string) (lives, known bool, err error) {
	file, byteNo, _ := strings.Cut(name, ":")
	ino, err1 := strconv.ParseUint(file, 10, 64)
	offset, err2 := strconv.ParseInt(byteNo, 10, 64)
	if err1 != nil || err2 != nil || offset < 0 {
		return false, false, nil // a later version may use other names
	}
	f, err := openExisting(s.livesPath())
	if f == nil || err != nil {
		return false, false, err
	}
	defer f.Close() // nothing was written
	info, err := f.Stat()
	if err != nil || inode(info) != ino {
		return false, false, err
	}
	lives, err = isLocked(f, offset)
	return lives, err == nil, err
}

// State reports who has locked the byte of a key, as far as the two files show.
func (s *Space) State(offset int64) (State, error) {
	locked, err := s.isLockedIn(s.path, offset)
	if err != nil || !locked {
		return Free, err
	}
	marked, err := s.isLockedIn(s.livesPath(), offset)
	if err != nil || marked {
		return Kept, err
	}
	return Inherited, nil
}

func (s *Space) isLockedIn(path string, offset int64) (bool, error) {
	f, err := openExisting(path)
	if f == nil || err != nil {
		return false, err
	}
	defer f.Close() // nothing was written
	return isLocked(f, offset)
}

// isLocked asks with a description of its own, for which the locks of this
// process are another's.
func isLocked(f *os.File, offset int64) (bool, error) {
	lk := span{offset: offset}.flock()
	if err := fcntl(f.Fd(), unix.F_OFD_GETLK, lk); err != nil {
		return false, fmt.Errorf("query the lock on byte %d of %s: %w", offset, f.Name(), err)
	}
	return lk.Type != unix.F_UNLCK, nil
}

// openExisting opens a file to query its locks; nil if there is none.
func openExisting(path string) (*os.File, error) {
	f, err := plainfile.Open(path, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return f, err
}

// mark records that this process holds the claims. It returns nil if it cannot.
// Claims without a mark count as an earlier version's, whose death is detected
// in other ways.
func (s *Space) mark(claims []claim) *os.File {
	s.life.mu.Lock()
	defer s.life.mu.Unlock()
	// Life checks whether the file is still the one at the path. Here the check
	// would slow down every lock.
	if s.life.file == nil && s.life.reach(s.livesPath()) != nil {
		return nil
	}
	for _, c := range claims {
		if !c.shared {
			_, _ = tryLock(s.life.file, span{offset: c.offset, shared: true}) // see above
		}
	}
	return s.life.file
}

func unmark(f *os.File, claims []claim) {
	if f == nil {
		return
	}
	for _, c := range claims {
		if !c.shared {
			_ = unlockSpan(f, c.offset, 1) // a mark without its key means nothing
		}
	}
}

// reach makes l.file a description of the file now at path.
func (l *life) reach(path string) error {
	if l.file != nil {
		now, err := os.Stat(path)
		if err == nil && os.SameFile(now, l.info) {
			return nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		l.earlier = append(l.earlier, l.file)
		l.file = nil
	}
	for l.file == nil {
		f, err := openFile(path, os.O_RDONLY|os.O_CREATE)
		if err != nil {
			return err
		}
		ok, err := l.take(f, path)
		if !ok || err != nil {
			err = joined.Errors(err, f.Close())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// take locks a byte of f and keeps it, unless another process holds that byte or
// has deleted the file meanwhile.
func (l *life) take(f *os.File, path string) (bool, error) {
	own := span{offset: rand.Int64() | 1, shared: true}
	if ok, err := tryLock(f, own); !ok || err != nil {
		return false, err
	}
	info, err := f.Stat()
	if err != nil {
		return false, err
	}
	current, err := isCurrent(f, path)
	if current && err == nil {
		l.file, l.info, l.own = f, info, own
	}
	return current, err
}

func inode(info os.FileInfo) uint64 { return info.Sys().(*syscall.Stat_t).Ino }

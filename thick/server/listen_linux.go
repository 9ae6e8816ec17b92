package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/plainfile"
)

// Listen makes a unix socket for Serve at an absolute path, with mode 0600 from its
// first moment. Its directory is made with mode 0700 if it is missing; an
// existing one is left as it is, but refused if others than its owner can write to it. With
// Options.UID, the socket belongs to that user, and a new directory has mode 0711.
//
// A socket that a dead daemon left behind is replaced. If a daemon, of any program, answers
// at the path, Listen returns an error that is syscall.EADDRINUSE. A file that is no socket is
// refused. A lock, in a file beside the socket, keeps two daemons that start together
// apart; the file stays.
func (s *Server) Listen(path string) (net.Listener, error) {
	l, err := listen(path, s.options.UID)
	if err != nil {
		return nil, fmt.Errorf("server: listen at %s: %w", path, err)
	}
	return l, nil
}

func listen(path string, uid int) (_ net.Listener, err error) {
	if !filepath.IsAbs(path) {
		return nil, errors.New("not an absolute path")
	}
	if err := makeDir(filepath.Dir(path), uid); err != nil {
		return nil, err
	}
	lock, err := lockFile(path + ".lock")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = joined.Errors(err, lock.Close())
		}
	}()
	if err := checkStale(path); err != nil {
		return nil, err
	}
	return bind(path, uid, lock)
}

// makeDir makes the directory of the socket. Whoever can write there can put a socket of
// their own in its place, and be called by root.
func makeDir(dir string, uid int) error {
	mode := fs.FileMode(0o700)
	if uid != 0 {
		mode = 0o711
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	switch err := os.Mkdir(dir, mode); {
	case err == nil:
		if err := os.Chmod(dir, mode); err != nil { // whatever the umask is
			return err
		}
	case !errors.Is(err, fs.ErrExist):
		return err
	}
	if err := plainfile.Trust(dir); err != nil {
		return err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if info.Mode()&0o022 != 0 {
		return fmt.Errorf("%s is writable by others (mode %v): %w", dir, info.Mode().Perm(), plainfile.ErrInsecure)
	}
	owner := int(info.Sys().(*syscall.Stat_t).Uid)
	if owner != 0 && owner != os.Geteuid() {
		return fmt.Errorf("%s belongs to user %d: %w", dir, owner, plainfile.ErrInsecure)
	}
	return nil
}

// lockFile takes a lock that ends with this process.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("another daemon has locked %s: %w", path, syscall.EADDRINUSE)
		}
		return nil, joined.Errors(err, f.Close())
	}
	return f, nil
}

// answerTime is how long a daemon at the path has to accept a connection. The kernel
// accepts for it, so this passes only if its queue is full.
const answerTime = 2 * time.Second

// checkStale returns nil if the path is free, or has a socket that nobody listens at.
func checkStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("there is a file that is no socket (%v)", info.Mode())
	}
	conn, err := net.DialTimeout("unix", path, answerTime)
	switch {
	case err == nil:
		return joined.Errors(fmt.Errorf("a daemon answers there: %w", syscall.EADDRINUSE), conn.Close())
	case errors.Is(err, syscall.ECONNREFUSED):
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return nil // it went meanwhile
	default:
		return fmt.Errorf("a daemon may live there (%w): %w", err, syscall.EADDRINUSE)
	}
}

// bind makes the socket. The kernel takes its mode from the descriptor, so that it is
// never open to others.
func bind(path string, uid int, lock *os.File) (_ net.Listener, err error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) { failed = unix.Fchmod(int(fd), 0o600) })
		return joined.Errors(err, failed)
	}}
	made, err := config.Listen(context.Background(), "unix", path)
	if err != nil {
		if len(path) > longestPath {
			err = fmt.Errorf("%w: %d bytes are more than the %d of a socket's path", err, len(path), longestPath)
		}
		return nil, err
	}
	l := made.(*net.UnixListener)
	l.SetUnlinkOnClose(false)
	defer func() {
		if err != nil {
			err = joined.Errors(err, l.Close(), os.Remove(path))
		}
	}()
	if uid != 0 && uid != os.Geteuid() {
		if err := os.Lchown(path, uid, -1); err != nil {
			return nil, err
		}
	}
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	return &socket{UnixListener: l, path: path, info: info, lock: lock}, nil
}

// longestPath is the length of the longest path of a socket (unix(7), sun_path).
const longestPath = 107

// socket is a listener that removes its socket when it is closed.
type socket struct {
	*net.UnixListener
	path string
	info fs.FileInfo
	lock *os.File
	once sync.Once
	err  error
}

// Close closes the listener. The socket is removed if it is still this one: an
// administrator may have moved another daemon's to its path.
func (s *socket) Close() error {
	s.once.Do(func() {
		at, err := os.Lstat(s.path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			err = nil
		case err == nil && os.SameFile(at, s.info):
			err = os.Remove(s.path)
		}
		s.err = joined.Errors(err, s.UnixListener.Close(), s.lock.Close())
	})
	return s.err
}

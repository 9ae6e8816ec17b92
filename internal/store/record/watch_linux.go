package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Watch notices which files of one directory have changed, by inotify(7). One goroutine at
// a time may use it.
type Watch struct {
	dir     string
	mask    uint32
	file    *os.File
	watched bool // the directory that is at dir now, as far as is known
	buf     []byte
}

const (
	nameChanges = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE |
		unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR
	fileChanges = nameChanges | unix.IN_MODIFY
)

// WatchFiles begins to watch a directory, which need not exist. The caller closes the Watch.
func WatchFiles(dir string) (*Watch, error) { return watch(dir, fileChanges) }

// WatchNames is WatchFiles for a caller that needs to know only which names come to lead to
// another file, or to none: writing to a file is no change.
func WatchNames(dir string) (*Watch, error) { return watch(dir, nameChanges) }

func watch(dir string, mask uint32) (*Watch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", dir, err)
	}
	w := &Watch{dir: dir, mask: mask, file: os.NewFile(uintptr(fd), "inotify"), buf: make([]byte, 16<<10)}
	if _, err := w.Now(); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// Now returns the changes since the last call, and waits for none.
func (w *Watch) Now() (Changes, error) {
	var c Changes
	seen := make(map[string]bool)
	raw, err := w.file.SyscallConn()
	if err != nil {
		return c, err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = w.drain(int(fd), &c, seen)
		failed = errors.Join(failed, w.add(int(fd), &c))
	})
	if err = errors.Join(err, failed); err != nil {
		c.Lost = true
		return c, fmt.Errorf("watch %s: %w", w.dir, err)
	}
	return c, nil
}

// add begins to watch the directory if that was not possible before. Everything in it
// may then be new.
func (w *Watch) add(fd int, c *Changes) error {
	if w.watched {
		return nil
	}
	_, err := unix.InotifyAddWatch(fd, w.dir, w.mask)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	w.watched = err == nil
	c.Lost = true
	return err
}

func (w *Watch) drain(fd int, c *Changes, seen map[string]bool) error {
	for {
		n, err := unix.Read(fd, w.buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return nil
		case err != nil:
			return err
		case n == 0:
			return io.ErrUnexpectedEOF
		}
		for b := w.buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			mask, size := binary.NativeEndian.Uint32(b[4:]), int(binary.NativeEndian.Uint32(b[12:]))
			b = b[unix.SizeofInotifyEvent:]
			name := string(bytes.TrimRight(b[:min(size, len(b))], "\x00"))
			b = b[min(size, len(b)):]
			switch {
			case mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_IGNORED|unix.IN_UNMOUNT) != 0:
				w.watched, c.Lost = false, true
			case mask&unix.IN_Q_OVERFLOW != 0:
				c.Lost = true
			case name != "" && !seen[name]:
				seen[name] = true
				c.Names = append(c.Names, name)
			}
		}
	}
}

// Close ends the watch.
func (w *Watch) Close() error { return w.file.Close() }

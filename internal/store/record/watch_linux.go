package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/joined"
)

// Watch notices which files of one directory have changed, by inotify(7). When it has lost
// some, it is of no further use: the directory may be another one. One goroutine at a time
// may use it.
type Watch struct {
	dir  string
	file *os.File
	buf  []byte
}

const (
	nameChanges = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE |
		unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR
	fileChanges = nameChanges | unix.IN_MODIFY
)

// WatchFiles begins to watch a directory. The caller closes the Watch.
func WatchFiles(dir string) (*Watch, error) { return watch(dir, fileChanges) }

// WatchNames is WatchFiles for a caller that needs to know only which names come to lead to
// another file, or to none: writing to a file is no change.
func WatchNames(dir string) (*Watch, error) { return watch(dir, nameChanges) }

func watch(dir string, mask uint32) (*Watch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", dir, err)
	}
	w := &Watch{dir, os.NewFile(uintptr(fd), "inotify"), make([]byte, 16<<10)}
	if _, err := unix.InotifyAddWatch(fd, dir, mask); err != nil {
		return nil, joined.Errors(fmt.Errorf("watch %s: %w", dir, err), w.Close())
	}
	return w, nil
}

// Now returns the changes since the last call, and waits for none.
func (w *Watch) Now() (c Changes, err error) {
	raw, err := w.file.SyscallConn()
	if err != nil {
		return c, err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = w.drain(int(fd), &c) })
	if err = joined.Errors(err, failed); err != nil {
		return c, fmt.Errorf("watch %s: %w", w.dir, err)
	}
	return c, nil
}

func (w *Watch) drain(fd int, c *Changes) error {
	seen := make(map[string]bool)
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
			case mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_IGNORED|unix.IN_UNMOUNT|unix.IN_Q_OVERFLOW) != 0:
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

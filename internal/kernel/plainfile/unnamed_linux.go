package plainfile

import (
	"errors"
	"io/fs"
	"os"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/joined"
)

// Unnamed is a new file that gets its content first and its name last, in one step. It
// is made in the background: on ext4 without a journal that takes as long as many other
// system calls together. Until it has a name, the end of the process or of the machine
// deletes it.
//
// To sync it before it has a name is of no use: some file systems skip such files.
type Unnamed struct {
	made      chan *os.File // nil if it could not be made
	discarded bool
}

// making is how many files are being made. Its limit bounds the threads that a slow disk
// blocks.
var making atomic.Int32

const mostAtOnce = 32

// Prepare begins to make a file in a directory. It returns nil if too many are being made.
func Prepare(dir string, perm fs.FileMode) *Unnamed {
	if making.Add(1) > mostAtOnce {
		making.Add(-1)
		return nil
	}
	u := &Unnamed{made: make(chan *os.File, 1)}
	go func() {
		defer close(u.made)
		defer making.Add(-1)
		// Without it Publish fails, and its caller makes the file.
		fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, uint32(perm))
		if err == nil {
			u.made <- os.NewFile(uintptr(fd), dir)
		}
	}()
	return u
}

// Publish writes the content and gives the file its name. It returns the open file. If
// there is another of that name, or the file system does not make such files, it returns
// an error and nothing is left.
func (u *Unnamed) Publish(path string, data []byte) (*os.File, error) {
	f := u.Take()
	if f == nil {
		return nil, errors.ErrUnsupported
	}
	_, err := f.Write(data)
	if err == nil {
		err = link(f, path)
	}
	if err != nil {
		return nil, joined.Errors(err, f.Close())
	}
	return f, nil
}

// Discard deletes a file that was not published. It does not wait for it.
func (u *Unnamed) Discard() {
	if u == nil || u.discarded {
		return
	}
	u.discarded = true
	select {
	case f := <-u.made:
		discard(f)
	default:
		go func() { discard(<-u.made) }()
	}
}

func discard(f *os.File) {
	if f != nil {
		_ = f.Close() // nothing of it stays
	}
}

// Take waits for the file and returns it, the first time. It returns nil if there is
// none. The caller closes it.
func (u *Unnamed) Take() *os.File {
	if u == nil || u.discarded {
		return nil
	}
	return <-u.made
}

func link(f *os.File, path string) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = conn.Control(func(fd uintptr) {
		from := "/proc/thread-self/fd/" + strconv.Itoa(int(fd))
		if err := unix.Linkat(unix.AT_FDCWD, from, unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW); err != nil {
			inner = &os.LinkError{Op: "linkat", Old: f.Name(), New: path, Err: err}
		}
	})
	return joined.Errors(err, inner)
}

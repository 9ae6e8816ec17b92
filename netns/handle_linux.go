package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/joined"
)

// threadNetNS is the link through which the kernel shows a thread its own
// namespace. The process's, /proc/self/ns/net, is that of its leading thread.
// If a goroutine that is locked to that thread leaves it in another namespace,
// Go parks it there for good.
const threadNetNS = "/proc/thread-self/ns/net"

// Handle is an open network namespace. It keeps the namespace alive, whatever
// happens to the path it was opened from, until Close.
//
// A Handle is safe for concurrent use.
type Handle struct {
	file *os.File
	id   ID
}

// Open opens the network namespace that path means, following symbolic links.
//
// It never blocks, and does not touch other kinds of files: it examines the file
// before opening it, because opening a FIFO would block and opening a device (a tape,
// a watchdog) can act on it.
//
// The error is [fs.ErrNotExist] if nothing is at path, and [ErrNotNetNS] if something
// else is.
func Open(path string) (_ *Handle, err error) {
	defer naming(&err, "open network namespace %q", path)
	return open(path)
}

// naming puts the operation in front of an error.
func naming(err *error, operation string, args ...any) {
	if *err != nil {
		*err = fmt.Errorf("%s: %w", fmt.Sprintf(operation, args...), *err)
	}
}

func open(path string) (*Handle, error) {
	if nsfs, err := isNSFS(path); err != nil {
		return nil, err
	} else if !nsfs {
		return nil, ErrNotNetNS
	}
	// O_NONBLOCK is for the path that changed after the look at it; os adds
	// O_CLOEXEC. The PathError is unwrapped: the caller names the path.
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, withoutPath(err)
	}
	id, err := identify(file)
	if err != nil {
		return nil, joined.Errors(err, file.Close())
	}
	return &Handle{file: file, id: id}, nil
}

// isNSFS reports whether path means a namespace, of whichever kind.
func isNSFS(path string) (bool, error) {
	var st unix.Statfs_t
	err := restart(func() error { return unix.Statfs(path, &st) })
	return err == nil && st.Type == unix.NSFS_MAGIC, err
}

// identify returns the identity of the namespace that file is, or [ErrNotNetNS]. It
// examines the open file, which may be another one than the file examined before.
func identify(file *os.File) (id ID, err error) {
	err = control(file, func(fd int) (err error) {
		id, err = identifyFD(fd)
		return err
	})
	return id, err
}

func identifyFD(fd int) (ID, error) {
	var sfs unix.Statfs_t
	if err := restart(func() error { return unix.Fstatfs(fd, &sfs) }); err != nil {
		return ID{}, err
	}
	// Each driver gives an ioctl number a meaning of its own, so only nsfs is
	// asked.
	if sfs.Type != unix.NSFS_MAGIC {
		return ID{}, ErrNotNetNS
	}
	// Linux 4.11, commit e5ff5ce6e20e, added NS_GET_NSTYPE.
	kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
	if err != nil {
		return ID{}, fmt.Errorf("ask for the namespace's type: %w", err)
	}
	if kind != unix.CLONE_NEWNET {
		return ID{}, ErrNotNetNS
	}
	return statFD(fd)
}

// statFD returns the identity of an open file.
func statFD(fd int) (ID, error) {
	var st unix.Stat_t
	err := restart(func() error { return unix.Fstat(fd, &st) })
	return idOf(&st), err
}

// Current opens the network namespace of the calling OS thread. A goroutine
// that is not locked to its thread, as almost all are, finds that of the
// process.
func Current() (*Handle, error) { return current(threadNetNS) }

// current is Current, with the name of the handle's file.
func current(name string) (*Handle, error) {
	fd, err := openOrigin()
	if err != nil {
		return nil, err
	}
	h := &Handle{file: os.NewFile(uintptr(fd), name)}
	if h.id, err = statFD(fd); err != nil {
		return nil, joined.Errors(procError("look up the thread's network namespace", err), h.Close())
	}
	return h, nil
}

// CurrentID returns the identity of the network namespace of the calling OS
// thread. It costs one stat.
func CurrentID() (ID, error) {
	return statID("look up the thread's network namespace", threadNetNS)
}

// ProcessID returns the identity of the network namespace of the process: the
// one of all goroutines that are not locked to a thread. The leading thread,
// and so /proc/self/ns/net, may be in another. It costs a goroutine and one
// stat.
func ProcessID() (ID, error) {
	type answer struct {
		id  ID
		err error
	}
	done := make(chan answer, 1)
	go func() { // never on a thread that another goroutine is locked to
		id, err := statID("look up the process's network namespace", threadNetNS)
		done <- answer{id, err}
	}()
	a := <-done
	return a.id, a.err
}

func statID(op, path string) (ID, error) {
	var st unix.Stat_t
	if err := restart(func() error { return unix.Stat(path, &st) }); err != nil {
		return ID{}, procError(op, err)
	}
	return idOf(&st), nil
}

// procError adds the likely cause of a missing link below /proc, because "no such file
// or directory" about one's own namespace explains nothing.
func procError(op string, err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrNotNetNS) {
		return fmt.Errorf("%s: is /proc mounted? %w", op, err)
	}
	return fmt.Errorf("%s: %w", op, err)
}

// ID returns the identity of the namespace. It is valid after Close.
func (h *Handle) ID() ID { return h.id }

// File returns the open file, for setns(2) or for a child process to inherit.
// It belongs to the handle: the caller must not close it, nor use it after
// Close.
func (h *Handle) File() *os.File { return h.file }

// Close lets go of the namespace. Calling it again does nothing.
func (h *Handle) Close() error {
	if err := h.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("close network namespace %s: %w", h.id, err)
	}
	return nil
}

// control runs fn with the descriptor of file, which stays open meanwhile even
// if another goroutine closes the file. It fails with [os.ErrClosed] if the
// file is closed; os has no other reason, but an error that is not that one.
func control(file *os.File, fn func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = fn(int(fd)) }); err != nil {
		return fmt.Errorf("%w: %w", os.ErrClosed, err)
	}
	return inner
}

// restart repeats call for as long as a signal interrupts it: the runtime
// preempts goroutines with signals, and a file system in user space lets them
// through.
func restart(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func withoutPath(err error) error {
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		return pathErr.Err
	}
	return err
}

// idOf converts the fields, whose types differ between architectures.
func idOf(st *unix.Stat_t) ID {
	return ID{Dev: uint64(st.Dev), Ino: uint64(st.Ino)}
}

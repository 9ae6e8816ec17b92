package netns

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// New makes a network namespace without a name. It ends when nothing refers to it any
// more: the handle, a process in it, or a path at which [Pin] keeps it. It holds a
// loopback interface, which is down.
func New() (_ *Handle, err error) {
	defer naming(&err, "create network namespace")
	return newNamed(unnamed)
}

// unnamed is the name of files without a path. It is no path: that of the thread would
// lead others to another namespace.
const unnamed = "network namespace"

// newNamed makes a namespace. The handle's file gets the name.
func newNamed(name string) (h *Handle, err error) {
	err = onThread(unshare, func() (err error) {
		h, err = current(name)
		return err
	})
	return h, err
}

func unshare() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	return nil
}

// NewIn is [New] for a namespace that belongs to a user namespace: root in that user
// namespace has all privileges in it. owner is the user namespace, for example
// /proc/PID/ns/user, opened. It needs CAP_SYS_ADMIN in owner.
//
// Only a process with a single thread can enter a user namespace. So NewIn forks one,
// which ends before NewIn returns. If owner is the caller's own user namespace, NewIn is
// New.
func NewIn(owner *os.File) (h *Handle, err error) {
	defer naming(&err, "create network namespace in user namespace %q", owner.Name())
	own, err := isOwnUserNS(owner)
	if err != nil {
		return nil, err
	}
	if own {
		return newNamed(unnamed)
	}
	err = control(owner, func(fd int) error {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		child, err := forkInside(fd)
		if err != nil {
			return err
		}
		defer child.end()
		h, err = open(fmt.Sprintf("/proc/%d/ns/net", child.pid))
		return err
	})
	return h, err
}

// isOwnUserNS reports whether a file is the user namespace that the caller is in.
func isOwnUserNS(f *os.File) (own bool, err error) {
	var id ID
	err = control(f, func(fd int) (err error) {
		id, err = statFD(fd)
		return err
	})
	if err != nil {
		return false, err
	}
	now, err := statID("look up the thread's user namespace", "/proc/thread-self/ns/user")
	return id == now, err
}

// inside is a process in a user namespace and in a network namespace of its own. It
// ends with the thread that started it.
type inside struct{ pid int }

// end ends the process and waits for it.
func (c inside) end() {
	_ = unix.Kill(c.pid, unix.SIGKILL) // it cannot have ended
	// ECHILD: the program reaps all its children, this one too.
	_ = restart(func() error { _, err := unix.Wait4(c.pid, nil, 0, nil); return err })
}

// forkInside starts the process. owner is the descriptor of the user namespace. The
// caller has locked its thread until the process has ended.
func forkInside(owner int) (child inside, err error) {
	var said [2]int // read end, write end
	if err := unix.Pipe2(said[:], unix.O_CLOEXEC); err != nil {
		return child, fmt.Errorf("pipe: %w", err)
	}
	child.pid, err = forkQuietly(childArgs{owner: uintptr(owner), say: uintptr(said[1]), parent: uintptr(os.Getpid())})
	_ = unix.Close(said[1])                    // the child's
	defer func() { _ = unix.Close(said[0]) }() // was only read
	if err != nil {
		return child, fmt.Errorf("fork: %w", err)
	}
	var answer [2]byte // the step that failed, and its errno; zeros if none did
	n := 0
	err = restart(func() (err error) { n, err = unix.Read(said[0], answer[:]); return err })
	switch {
	case err != nil || n < len(answer):
		err = errors.Join(errors.New("the process that was to make it has ended"), err)
	case answer[0] == stepEnter:
		err = fmt.Errorf("enter the user namespace: %w", syscall.Errno(answer[1]))
	case answer[0] == stepUnshare:
		err = fmt.Errorf("unshare: %w", syscall.Errno(answer[1]))
	}
	if err != nil {
		child.end()
	}
	return child, err
}

// Steps of the child that can fail.
const (
	stepEnter = iota + 1
	stepUnshare
)

// childArgs are the descriptors that the child uses, and the number of its parent.
type childArgs struct {
	owner  uintptr // the user namespace
	say    uintptr // takes the answer
	parent uintptr
}

// forkQuietly forks with all signals of the thread blocked: the child must not run a signal handler
// of the Go runtime, whose other threads it lacks.
func forkQuietly(args childArgs) (pid int, err error) {
	var all, before unix.Sigset_t
	for i := range all.Val {
		all.Val[i]--
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &before); err != nil {
		return 0, err
	}
	n, errno := fork(&args)
	err = unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil)
	if errno != 0 {
		return 0, errors.Join(errno, err)
	}
	return int(n), err
}

// fork returns in the parent only. The child has one thread and a copy of the memory
// in which any lock may be held, so it only makes system calls: no function that it
// calls may grow the stack, allocate, or be instrumented.
//
//go:noinline
//go:norace
//go:nosplit
func fork(args *childArgs) (pid uintptr, errno syscall.Errno) {
	flags, stack := uintptr(unix.SIGCHLD), uintptr(0)
	if runtime.GOARCH == "s390x" {
		flags, stack = stack, flags // its clone(2) has them the other way round
	}
	pid, _, errno = syscall.RawSyscall6(unix.SYS_CLONE, flags, stack, 0, 0, 0, 0)
	if pid != 0 || errno != 0 {
		return pid, errno
	}
	var answer [2]byte
	_, _, errno = syscall.RawSyscall(unix.SYS_SETNS, args.owner, unix.CLONE_NEWUSER, 0)
	if errno != 0 {
		answer[0], answer[1] = stepEnter, byte(errno)
	} else if _, _, errno = syscall.RawSyscall(unix.SYS_UNSHARE, unix.CLONE_NEWNET, 0, 0); errno != 0 {
		answer[0], answer[1] = stepUnshare, byte(errno)
	}
	// Entering resets both: the parent must be allowed to open the namespace.
	syscall.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 1, 0)
	syscall.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0)
	if parent, _, _ := syscall.RawSyscall(unix.SYS_GETPPID, 0, 0, 0); parent != args.parent {
		syscall.RawSyscall(unix.SYS_EXIT_GROUP, 1, 0, 0) // it has ended already
	}
	syscall.RawSyscall(unix.SYS_WRITE, args.say, uintptr(unsafe.Pointer(&answer)), 2)
	for {
		syscall.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0) // until it is killed
	}
}

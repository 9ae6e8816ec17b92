package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// OpenPID opens the network namespace of a process: the one that its leading thread is
// in. The error is [fs.ErrNotExist] if there is no such process, or it has ended.
//
// The number of a process that was waited for may be another's. For one that is not a
// child of the caller's, open it with pidfd_open(2), verify that it is the one that is
// meant, and use [OpenFD].
func OpenPID(pid int) (*Handle, error) {
	h, err := openProcess(strconv.Itoa(pid))
	if err != nil {
		return nil, fmt.Errorf("open the network namespace of process %d: %w", pid, err)
	}
	return h, nil
}

func openProcess(pid string) (*Handle, error) {
	h, err := open("/proc/" + pid + "/ns/net")
	if errors.Is(err, unix.ESRCH) { // it ended meanwhile
		err = fs.ErrNotExist
	}
	return h, err
}

// OpenFD opens the network namespace that a descriptor refers to, or that the process
// is in to which a descriptor of pidfd_open(2) refers. The caller keeps fd. The error
// is [ErrNotNetNS] if it refers to something else, and [fs.ErrNotExist] if the process
// has ended.
func OpenFD(fd uintptr) (*Handle, error) {
	h, err := openFD(int(fd))
	if err != nil {
		return nil, fmt.Errorf("open the network namespace of descriptor %d: %w", fd, err)
	}
	return h, nil
}

func openFD(fd int) (*Handle, error) {
	pid, err := processOf(fd)
	if err != nil {
		return nil, err
	}
	if pid == "" {
		own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("duplicate: %w", err)
		}
		file := os.NewFile(uintptr(own), unnamed)
		id, err := identify(file)
		if err != nil {
			return nil, errors.Join(err, file.Close())
		}
		return &Handle{file: file, id: id}, nil
	}
	h, err := openProcess(pid)
	if err != nil {
		return nil, err
	}
	// It has not been waited for, so the number was its own all the time.
	if now, err := processOf(fd); err != nil || now != pid {
		return nil, errors.Join(err, fs.ErrNotExist, h.Close())
	}
	return h, nil
}

// processOf returns the number of the process that a pidfd refers to; empty if fd is
// something else. The error is fs.ErrNotExist if the process has been waited for.
//
//	Pid:	4711
func processOf(fd int) (pid string, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/thread-self/fdinfo/%d", fd))
	if errors.Is(err, fs.ErrNotExist) {
		return "", unix.EBADF
	}
	if err != nil {
		return "", err
	}
	for _, line := range strings.Split(string(data), "\n") {
		value, ok := strings.CutPrefix(line, "Pid:")
		if !ok {
			continue
		}
		pid = strings.TrimSpace(value)
		if pid == "-1" { // it has been waited for
			return "", fs.ErrNotExist
		}
		if pid == "0" {
			return "", errors.New("the process is in a PID namespace that is not visible from here")
		}
		return pid, nil
	}
	return "", nil
}

// Owner returns the user namespace that the network namespace belongs to. The error is
// [fs.ErrPermission] if that is neither the caller's own nor one below it.
func (h *Handle) Owner() (UserNS, error) {
	owner, err := h.owner()
	if err != nil {
		return UserNS{}, fmt.Errorf("user namespace of network namespace %s: %w", h.id, err)
	}
	return owner, nil
}

func (h *Handle) owner() (owner UserNS, err error) {
	var inner error
	err = control(h.file, func(fd int) { owner, inner = ownerOf(fd) })
	return owner, errors.Join(err, inner)
}

func ownerOf(fd int) (owner UserNS, err error) {
	// Linux 4.9, commit 6786741dbf99, added NS_GET_USERNS.
	user, err := unix.IoctlRetInt(fd, unix.NS_GET_USERNS)
	if err != nil {
		return UserNS{}, err
	}
	defer func() { err = errors.Join(err, unix.Close(user)) }()
	var st unix.Stat_t
	if err := restart(func() error { return unix.Fstat(user, &st) }); err != nil {
		return UserNS{}, err
	}
	uid, err := unix.IoctlGetUint32(user, unix.NS_GET_OWNER_UID)
	return UserNS{ID: idOf(&st), UID: uid}, err
}

package floor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// socket is a netlink socket. The kernel answers within the call that asks, so
// reading never waits.
type socket struct {
	fd  int
	buf []byte
}

func open(protocol int) (*socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	// With this option an error does not carry a copy of the request.
	if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1); err != nil {
		return nil, errors.Join(fmt.Errorf("set NETLINK_CAP_ACK: %w", err), unix.Close(fd))
	}
	return &socket{fd: fd, buf: make([]byte, 16384)}, nil
}

// openIn opens a route socket in another namespace. If the thread cannot
// return, it stays locked and ends with its goroutine.
func openIn(container *os.File) (_ *socket, err error) {
	runtime.LockOSThread()
	host, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("open this thread's namespace: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Close(host)) }()
	if err := unix.Setns(int(container.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("enter %s: %w", container.Name(), err)
	}
	s, openErr := open(unix.NETLINK_ROUTE)
	if err := unix.Setns(host, unix.CLONE_NEWNET); err != nil {
		return nil, errors.Join(openErr, fmt.Errorf("come back from %s: %w", container.Name(), err))
	}
	runtime.UnlockOSThread()
	return s, openErr
}

func (s *socket) close() error { return unix.Close(s.fd) }

// do sends the messages, reads their acknowledgements, and returns the other
// messages of the reply.
func (s *socket) do(m *message) (replies []syscall.NetlinkMessage, err error) {
	if err := unix.Sendto(s.fd, m.b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, fmt.Errorf("send to netlink: %w", err)
	}
	for want := m.want; want > 0; {
		n, _, err := unix.Recvfrom(s.fd, s.buf, 0)
		if err != nil {
			return nil, fmt.Errorf("receive from netlink: %w", err)
		}
		messages, err := syscall.ParseNetlinkMessage(s.buf[:n])
		if err != nil {
			return nil, fmt.Errorf("receive from netlink: %w", err)
		}
		for _, reply := range messages {
			if reply.Header.Type != unix.NLMSG_ERROR {
				reply.Data = append([]byte(nil), reply.Data...)
				replies = append(replies, reply)
				continue
			}
			want--
			if errno := -int32(binary.NativeEndian.Uint32(reply.Data)); errno != 0 {
				return nil, s.failed(syscall.Errno(errno))
			}
		}
	}
	return replies, nil
}

// failed drains the socket so that it can be used again.
func (s *socket) failed(errno syscall.Errno) error {
	for {
		_, _, err := unix.Recvfrom(s.fd, s.buf, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return errno
		case err != nil && !errors.Is(err, unix.EINTR):
			return errors.Join(errno, err)
		}
	}
}

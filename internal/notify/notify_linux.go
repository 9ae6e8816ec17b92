package notify

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/thread"
	"github.com/embedcni/cni/netns"
)

// Socket receives the announcements of one namespace. One goroutine at a time may
// receive from it. The caller closes it.
type Socket struct {
	file *os.File
	buf  []byte
}

// largest is more than the kernel puts into one announcement.
const largest = 64 << 10

// Open subscribes to groups of a netlink protocol, of rtnetlink or nf_tables, in
// a namespace. Groups is a mask; bit n-1 is group n. The size of the buffer, in the
// kernel's terms, is that of socket(7); 0 leaves it to the system. Beyond the system's
// limit it needs CAP_NET_ADMIN in the first user namespace, and is the limit without.
func Open(ns *netns.Handle, protocol int, groups uint32, buffer int) (*Socket, error) {
	fd := -1
	err := thread.In(ns, func() (err error) {
		fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket in namespace %s: %w", ns.ID(), err)
	}
	s := &Socket{file: os.NewFile(uintptr(fd), "netlink"), buf: make([]byte, largest)}
	if err := resize(fd, buffer); err != nil {
		return nil, errors.Join(fmt.Errorf("buffer of a netlink socket: %w", err), s.Close())
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		return nil, errors.Join(fmt.Errorf("watch for changes in namespace %s: %w", ns.ID(), err), s.Close())
	}
	return s, nil
}

func resize(fd, buffer int) error {
	if buffer == 0 || unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, buffer) == nil {
		return nil
	}
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, buffer)
}

// mostAtOnce limits the datagrams that one Next reads, so that it returns while others
// change things without end.
const mostAtOnce = 1024

// Next waits for announcements and calls each with the messages that have arrived, in
// order; the data is valid until each returns. Lost reports whether the kernel has
// dropped announcements, before these or after some of them. If the context ends,
// the error is its cause.
func (s *Socket) Next(ctx context.Context, each func(Message)) (lost bool, err error) {
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	if err := s.file.SetReadDeadline(time.Time{}); err != nil {
		return false, fmt.Errorf("watch for changes: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = s.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	raw, err := s.file.SyscallConn()
	if err != nil {
		return false, err
	}
	received := 0
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		var end bool
		end, failed = s.drain(int(fd), &received, &lost, each)
		return end
	})
	switch {
	case failed != nil:
		return lost, fmt.Errorf("watch for changes: %w", failed)
	case received > 0:
		return lost, nil
	case ctx.Err() != nil:
		return false, context.Cause(ctx)
	}
	return false, fmt.Errorf("watch for changes: %w", err)
}

// drain reads the datagrams that are there. It returns false if there was none.
func (s *Socket) drain(fd int, received *int, lost *bool, each func(Message)) (end bool, err error) {
	for *received < mostAtOnce {
		n, from, err := unix.Recvfrom(fd, s.buf, unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return *received > 0, nil
		case errors.Is(err, unix.ENOBUFS):
			*received++
			*lost = true
			continue
		case err != nil:
			return true, err
		}
		*received++
		// A process with CAP_NET_ADMIN can send to the group as well.
		if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 {
			continue
		}
		if n > len(s.buf) || !messages(s.buf[:n], each) {
			*lost = true
		}
	}
	return true, nil
}

// Message is one announcement.
type Message struct {
	Type, Flags uint16
	// Port is that of the socket with whose request the change came; 0 if the kernel
	// does not say, or changed it by itself.
	Port uint32
	Body []byte // behind the header
}

// messages calls each with the messages of a datagram. It returns false if one is cut
// off.
func messages(b []byte, each func(Message)) bool {
	for len(b) >= unix.NLMSG_HDRLEN {
		size := int(binary.NativeEndian.Uint32(b))
		if size < unix.NLMSG_HDRLEN || size > len(b) {
			return false
		}
		each(Message{
			Type: binary.NativeEndian.Uint16(b[4:]), Flags: binary.NativeEndian.Uint16(b[6:]),
			Port: binary.NativeEndian.Uint32(b[12:]), Body: b[unix.NLMSG_HDRLEN:size],
		})
		b = b[min((size+3)&^3, len(b)):]
	}
	return len(b) == 0
}

// Close ends the socket.
func (s *Socket) Close() error { return s.file.Close() }

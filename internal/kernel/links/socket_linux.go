package links

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/thread"
	"github.com/embedcni/cni/netns"
)

// Socket receives the announcements that the kernel sends to the groups of a netlink
// protocol: each change of the interfaces or of the packet filter of one network namespace.
// One goroutine at a time may receive from it. The caller closes it.
//
// The kernel drops announcements if the receiver's buffer is full, and says so once: then
// Next returns lost. A caller that opens a socket, then looks, and then listens misses no
// change.
type Socket struct {
	file *os.File
	buf  []byte
}

// Message is one announcement. Its Pid is the port of the socket with whose request the
// change came; 0 if the kernel does not say, or changed it by itself.
type Message = syscall.NetlinkMessage

// largest is more than the kernel puts into one datagram.
const largest = 64 << 10

// Subscribe subscribes to groups of a netlink protocol, of rtnetlink or nf_tables, in
// a namespace. Groups is a mask; bit n-1 is group n. The size of the buffer, in the
// kernel's terms, is that of socket(7); 0 leaves it to the system. Beyond the system's
// limit it needs CAP_NET_ADMIN in the first user namespace, and is the limit without.
func Subscribe(ns *netns.Handle, protocol int, groups uint32, buffer int) (*Socket, error) {
	fd := -1
	err := thread.In(ns, func() (err error) {
		fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket in namespace %s: %w", ns.ID(), err)
	}
	s := &Socket{file: os.NewFile(uintptr(fd), "netlink"), buf: make([]byte, largest)}
	if buffer != 0 && unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, buffer) != nil {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, buffer)
	}
	if err = cmp.Or(err, unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups})); err != nil {
		return nil, joined.Errors(fmt.Errorf("watch for changes in namespace %s: %w", ns.ID(), err), s.Close())
	}
	return s, nil
}

// Next waits for announcements and calls each with those that have arrived together, in
// order; the data is valid until each returns. There may be none. Lost reports whether
// announcements were dropped: by the kernel, and then by Next, too, up to now. If the
// context ends, the error is its cause.
func (s *Socket) Next(ctx context.Context, each func(Message)) (lost bool, err error) {
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	raw, err := s.file.SyscallConn()
	if err = cmp.Or(err, s.file.SetReadDeadline(time.Time{})); err != nil {
		return false, fmt.Errorf("watch for changes: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = s.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var n int
	var from unix.Sockaddr
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		n, from, failed = unix.Recvfrom(int(fd), s.buf, unix.MSG_TRUNC)
		// The kernel says once that it drops announcements, and does so until all that it
		// has kept are read.
		lost = errors.Is(failed, unix.ENOBUFS)
		for lost && ctx.Err() == nil && (failed == nil || errors.Is(failed, unix.ENOBUFS)) {
			_, _, failed = unix.Recvfrom(int(fd), s.buf, 0)
		}
		return lost || !errors.Is(failed, unix.EAGAIN)
	})
	if errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	if lost {
		return true, nil
	}
	if err = cmp.Or(err, failed); err != nil {
		return false, fmt.Errorf("watch for changes: %w", err)
	}
	// A process with CAP_NET_ADMIN can send to the group as well.
	if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 {
		return false, nil
	}
	messages, err := syscall.ParseNetlinkMessage(s.buf[:min(n, len(s.buf))])
	for _, m := range messages {
		each(m)
	}
	return err != nil || n > len(s.buf), nil
}

// Close ends the socket.
func (s *Socket) Close() error { return s.file.Close() }

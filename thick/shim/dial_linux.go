package shim

import (
	"context"
	"errors"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// dial connects to a socket. If more connections wait to be accepted than the listener's
// backlog holds, it waits until there is room.
func dial(ctx context.Context, path string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if !errors.Is(err, unix.EAGAIN) {
		return conn, err
	}
	// The runtime's sockets do not block, and poll(2) does not report when a unix socket
	// could connect. connect(2) on a blocking one waits for it.
	for ctx.Err() == nil {
		conn, err := dialBlocking(path, slice)
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return conn, err
		}
	}
	return nil, context.Cause(ctx)
}

// slice limits how long a connect(2) does not see the end of the context.
const slice = 250 * time.Millisecond

func dialBlocking(path string, within time.Duration) (net.Conn, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	limit := unix.NsecToTimeval(int64(within))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit); err != nil {
		return nil, os.NewSyscallError("setsockopt", err)
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return nil, os.NewSyscallError("connect", err)
	}
	return net.FileConn(f) // of a duplicate that does not block
}

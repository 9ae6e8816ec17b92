package server

import (
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/joined"
)

// peerOf returns the process that connected (unix(7), SO_PEERCRED): the credentials are
// those of the connect, whoever has the connection now. On an error it returns no user.
func peerOf(conn net.Conn) (peer, error) {
	unknown := peer{uid: -1}
	c, ok := conn.(syscall.Conn)
	if !ok {
		return unknown, errors.New("not a unix socket")
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return unknown, err
	}
	var cred *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) {
		domain, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DOMAIN)
		if err == nil && domain != unix.AF_UNIX {
			err = errors.New("not a unix socket") // SO_PEERCRED of another kind says root
		}
		if err == nil {
			cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		}
		failed = err
	})
	if err := joined.Errors(err, failed); err != nil {
		return unknown, err
	}
	return peer{uid: int(cred.Uid), pid: int(cred.Pid)}, nil
}

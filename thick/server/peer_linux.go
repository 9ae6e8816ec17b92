package server

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/plainfile"
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

// mostParents limits the way up from a process. Plugins are a few below the daemon.
const mostParents = 32

// isDescendant reports whether this process, or one that it has started, has started a process.
// One that has ended is none.
func isDescendant(pid int) bool {
	self := os.Getpid()
	for range mostParents {
		if pid == self || pid <= 1 {
			return false
		}
		if pid = parentOf(pid); pid == self {
			return true
		}
	}
	return false
}

// parentOf returns the parent of a process, or 0. The name of the program, in parentheses, may
// have any character (proc_pid_stat(5)).
//
//	4711 (embedcni-shim) S 4700 4711 …
func parentOf(pid int) (parent int) {
	stat, err := plainfile.Read(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	rest := string(stat)[strings.LastIndexByte(string(stat), ')')+1:]
	var state string
	if _, err := fmt.Sscan(rest, &state, &parent); err != nil {
		return 0
	}
	return parent
}

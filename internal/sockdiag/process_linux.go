package sockdiag

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/embedcni/cni/internal/plainfile"
	"github.com/embedcni/cni/internal/thread"
	"github.com/embedcni/cni/netns"
)

// Own returns the inodes of this process's sockets.
func Own() (map[uint32]bool, error) {
	return inodes("/proc/thread-self/fd") // /proc/self is the leading thread, which may have ended
}

// inodes returns the inodes of the sockets in a directory of descriptors.
func inodes(dir string) (map[uint32]bool, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list the sockets of a process: %w", err)
	}
	all := make(map[uint32]bool)
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil {
			continue // closed since
		}
		number, ok := strings.CutPrefix(target, "socket:[")
		if inode, err := strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 32); ok && err == nil {
			all[uint32(inode)] = true
		}
	}
	return all, nil
}

// Holders returns a process for each of the sockets, if one is visible: it may be of
// another user or PID namespace, or have ended. It looks at all processes.
func Holders(sockets map[uint32]bool) map[uint32]Process {
	found := make(map[uint32]Process)
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return found
	}
	for _, e := range entries {
		if len(found) == len(sockets) {
			break
		}
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		all, err := inodes(filepath.Join("/proc", e.Name(), "fd"))
		if err != nil {
			continue // ended, or another user's
		}
		for inode := range sockets {
			if _, known := found[inode]; all[inode] && !known {
				found[inode] = Process{pid, nameOf(pid)}
			}
		}
	}
	return found
}

// nameOf returns the name of a process, or nothing if it has ended.
func nameOf(pid int) string {
	name, err := plainfile.Read(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(name))
}

// Ephemeral returns the first and the last port that the kernel of a namespace gives
// to sockets that ask for none.
func Ephemeral(ns *netns.Handle) (first, last uint16, err error) {
	err = thread.In(ns, func() (err error) {
		first, last, err = ephemeral()
		return err
	})
	if err != nil {
		return 0, 0, fmt.Errorf("read the range of ephemeral ports: %w", err)
	}
	return first, last, nil
}

// ephemeral is Ephemeral for the namespace of the calling thread.
func ephemeral() (first, last uint16, err error) {
	data, err := plainfile.Read("/proc/sys/net/ipv4/ip_local_port_range")
	if err == nil {
		_, err = fmt.Sscan(string(data), &first, &last)
	}
	return first, last, err
}

// LocalPorts returns the ports that the kernel of a namespace gives to sockets that ask
// for none, and those that it must not give.
func LocalPorts(ns *netns.Handle) (l Local, err error) {
	var text string
	err = thread.In(ns, func() error {
		first, last, err := ephemeral()
		l.Ephemeral = Span{first, last}
		data, rerr := plainfile.Read("/proc/sys/net/ipv4/ip_local_reserved_ports")
		text = string(data)
		return errors.Join(err, rerr)
	})
	if err == nil {
		l.Reserved, err = parseSpans(text)
	}
	if err != nil {
		return Local{}, fmt.Errorf("read the local ports of the kernel: %w", err)
	}
	return l, nil
}

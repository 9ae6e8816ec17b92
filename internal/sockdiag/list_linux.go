package sockdiag

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/ports"
	"github.com/embedcni/cni/internal/thread"
	"github.com/embedcni/cni/netns"
)

// The request and the answer (<linux/inet_diag.h>): struct inet_diag_req_v2, and struct
// inet_diag_msg with attributes. Both have a struct inet_diag_sockid, with ports and
// addresses in network byte order.
const (
	sizeofSockID  = 48
	sizeofRequest = 8 + sizeofSockID
	sizeofAnswer  = 4 + sizeofSockID + 20

	sizeofAddress = 128 // struct sockaddr_storage

	attrV6Only = 11 // INET_DIAG_SKV6ONLY
	attrLocals = 12 // INET_DIAG_LOCALS: a struct sockaddr_storage for each address of SCTP
)

// States of sockets (<net/tcp_states.h>). A socket of UDP that is not connected is
// "closed".
const (
	stateClosed    = 7
	stateListening = 10
)

// answerTime limits the wait for an answer, in seconds. The kernel answers while a
// thread reads, so an answer that takes any time was lost.
const answerTime = 5

// The filter that the kernel applies: struct inet_diag_bc_op, of a code, the distance to
// the next op if it holds, and that if not. The port of a comparison is in another op.
const (
	sizeofOp    = 4
	attrFilter  = 1 // INET_DIAG_REQ_BYTECODE
	portAtLeast = 2 // INET_DIAG_BC_S_GE
	portAtMost  = 3 // INET_DIAG_BC_S_LE
)

// Bound lists the sockets of a protocol in a namespace that have one of the ports from
// first to last. The error wraps ErrUnknown if the kernel cannot list them.
func Bound(ns *netns.Handle, protocol string, first, last uint16) ([]Socket, error) {
	all, err := bound(ns, protocol, filter(first, last))
	// A kernel without filters lists all sockets, and so does SCTP.
	return slices.DeleteFunc(all, func(s Socket) bool { return s.Port < first || s.Port > last }), err
}

func bound(ns *netns.Handle, protocol string, filter []byte) (all []Socket, err error) {
	fd := -1
	err = thread.In(ns, func() (err error) {
		fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
		return err
	})
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		err = fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	if err != nil {
		return nil, fmt.Errorf("list %s sockets: %w", protocol, err)
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: answerTime}); err != nil {
		return nil, fmt.Errorf("list %s sockets: %w", protocol, err)
	}
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		some, err := list(fd, protocol, request(family, protocol, filter))
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) { // a kernel without filters
			some, err = list(fd, protocol, request(family, protocol, nil))
		}
		if errors.Is(err, unix.ENOENT) { // there is no module for the family, or for the protocol
			err = fmt.Errorf("%w: %w", ErrUnknown, err)
		}
		if err != nil {
			return nil, fmt.Errorf("list %s sockets: %w", protocol, err)
		}
		all = append(all, some...)
	}
	return all, nil
}

// list sends a request, and reads the answer.
func list(fd int, protocol string, request []byte) (all []Socket, err error) {
	if err := restart(func() error {
		return unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	}); err != nil {
		return nil, err
	}
	buf := make([]byte, 32<<10)
	for {
		var n int
		if err := restart(func() (err error) {
			n, _, err = unix.Recvfrom(fd, buf, unix.MSG_TRUNC)
			return err
		}); err != nil {
			return nil, err
		}
		if n > len(buf) {
			return nil, unix.EMSGSIZE
		}
		some, done, err := parse(buf[:n], protocol)
		all = append(all, some...)
		if done || err != nil {
			return all, err
		}
	}
}

// filter returns the attribute by which the kernel lists only sockets with those ports.
func filter(first, last uint16) []byte {
	const size = unix.SizeofRtAttr + 4*sizeofOp
	b := binary.NativeEndian.AppendUint16(nil, size)
	b = binary.NativeEndian.AppendUint16(b, attrFilter)
	// The filter ends where an op leads to its end, and rejects where one leads beyond.
	for _, op := range []struct {
		code   byte
		reject uint16
		port   uint16
	}{{portAtLeast, 5 * sizeofOp, first}, {portAtMost, 3 * sizeofOp, last}} {
		b = append(b, op.code, 2*sizeofOp)
		b = binary.NativeEndian.AppendUint16(b, op.reject)
		b = append(b, 0, 0)
		b = binary.NativeEndian.AppendUint16(b, op.port)
	}
	return b
}

func request(family byte, protocol string, filter []byte) []byte {
	number, state := byte(unix.IPPROTO_TCP), stateListening
	switch protocol {
	case "udp":
		number, state = unix.IPPROTO_UDP, stateClosed
	case "sctp":
		number = unix.IPPROTO_SCTP
	}
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+sizeofRequest+len(filter)))
	b = binary.NativeEndian.AppendUint16(b, unix.SOCK_DIAG_BY_FAMILY)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	b = append(b, make([]byte, 8)...) // sequence number and port
	b = append(b, family, number, 0, 0)
	b = binary.NativeEndian.AppendUint32(b, 1<<state)
	return append(append(b, make([]byte, sizeofSockID)...), filter...)
}

// parse reads one datagram of the answer. done reports whether it was the last.
func parse(data []byte, protocol string) (all []Socket, done bool, err error) {
	for len(data) >= unix.NLMSG_HDRLEN {
		size := int(binary.NativeEndian.Uint32(data))
		if size < unix.NLMSG_HDRLEN || size > len(data) {
			return all, true, unix.EBADMSG
		}
		body := data[unix.NLMSG_HDRLEN:size]
		switch binary.NativeEndian.Uint16(data[4:]) {
		case unix.NLMSG_DONE, unix.NLMSG_ERROR: // with an errno
			if len(body) >= 4 {
				if errno := int32(binary.NativeEndian.Uint32(body)); errno != 0 {
					return all, true, unix.Errno(-errno)
				}
			}
			return all, true, nil
		case unix.SOCK_DIAG_BY_FAMILY:
			some, err := parseSocket(body, protocol)
			if err != nil {
				return all, true, err
			}
			all = append(all, some...)
		}
		data = data[min((size+3)&^3, len(data)):]
	}
	return all, false, nil
}

// parseSocket reads a socket, which is one for each of its addresses. One without a
// port is none.
func parseSocket(body []byte, protocol string) (all []Socket, err error) {
	if len(body) < sizeofAnswer {
		return nil, unix.EBADMSG
	}
	port := binary.BigEndian.Uint16(body[4:])
	if port == 0 {
		return nil, nil
	}
	addr := address(body[0], body[8:24])
	both := addr == netip.IPv6Unspecified()
	addrs := []netip.Addr{addr}
	for attrs := body[sizeofAnswer:]; len(attrs) >= unix.SizeofRtAttr; {
		size := int(binary.NativeEndian.Uint16(attrs))
		if size < unix.SizeofRtAttr || size > len(attrs) {
			return nil, unix.EBADMSG
		}
		value := attrs[unix.SizeofRtAttr:size]
		switch binary.NativeEndian.Uint16(attrs[2:]) {
		case attrV6Only:
			both = both && len(value) > 0 && value[0] == 0
		case attrLocals:
			if locals := addresses(value); len(locals) > 0 {
				addrs = locals
			}
		}
		attrs = attrs[min((size+3)&^3, len(attrs)):]
	}
	inode := binary.NativeEndian.Uint32(body[sizeofAnswer-4:])
	for _, a := range addrs {
		if a == netip.IPv6Unspecified() && both {
			a = netip.Addr{}
		}
		all = append(all, Socket{ports.Claim{Protocol: protocol, Addr: a, Port: port}, inode})
	}
	return all, nil
}

func address(family byte, data []byte) netip.Addr {
	if family == unix.AF_INET {
		return netip.AddrFrom4([4]byte(data))
	}
	return netip.AddrFrom16([16]byte(data)).Unmap()
}

// addresses reads a list of struct sockaddr_storage.
func addresses(list []byte) (all []netip.Addr) {
	for ; len(list) >= sizeofAddress; list = list[sizeofAddress:] {
		switch binary.NativeEndian.Uint16(list) {
		case unix.AF_INET:
			all = append(all, address(unix.AF_INET, list[4:8]))
		case unix.AF_INET6:
			all = append(all, address(unix.AF_INET6, list[8:24]))
		}
	}
	return all
}

// restart repeats a call while a signal interrupts it.
func restart(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

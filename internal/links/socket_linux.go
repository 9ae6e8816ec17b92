package links

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// socket is a route netlink socket with one small buffer that is reused.
type socket struct {
	fd          int // negative when it is closed
	seq         uint32
	buf         []byte
	broken      bool // an exchange was not finished
	interrupted bool // the last list changed while the kernel sent it
}

// bufferSize is enough for any one message, and for some dozens of a list: the
// kernel sends no more than one read returns.
const bufferSize = 8 << 10

// answerTime limits the wait for an answer, in seconds. The kernel has answered
// when the sending call returns, so an answer that takes any time was lost.
const answerTime = 5

// openSocket opens a socket in the namespace of the calling thread.
func openSocket(buf []byte) (socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return socket{}, fmt.Errorf("open a netlink socket: %w", err)
	}
	s := socket{fd: fd, buf: buf}
	if err := s.prepare(); err != nil {
		return socket{}, errors.Join(fmt.Errorf("prepare a netlink socket: %w", err), s.close())
	}
	return s, nil
}

// close closes the socket. Further calls do nothing.
func (s *socket) close() error {
	if s.fd < 0 {
		return nil
	}
	fd := s.fd
	s.fd = -1
	if err := unix.Close(fd); err != nil {
		return fmt.Errorf("close a netlink socket: %w", err)
	}
	return nil
}

func (s *socket) prepare() error {
	if err := unix.Bind(s.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	if err := unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: answerTime}); err != nil {
		return err
	}
	// Linux 4.12 added error texts, and 4.20 filtered lists. Without the latter
	// the answers are longer, and filtered here.
	for _, option := range []int{unix.NETLINK_EXT_ACK, unix.NETLINK_CAP_ACK, unix.NETLINK_GET_STRICT_CHK} {
		err := unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, option, 1)
		if err != nil && !errors.Is(err, unix.ENOPROTOOPT) {
			return err
		}
	}
	return nil
}

// KernelError is an error answer of the kernel.
type KernelError struct {
	Errno unix.Errno
	Text  string // the kernel's explanation, or empty
}

func (e *KernelError) Error() string {
	if e.Text == "" {
		return e.Errno.Error()
	}
	return fmt.Sprintf("%s (%s)", e.Errno.Error(), e.Text)
}

func (e *KernelError) Unwrap() error { return e.Errno }

// execute sends a request and calls fn, which may be nil, for each message of
// the answer. A request without NLM_F_ACK and NLM_F_DUMP is a query for one
// message.
func (s *socket) execute(m *message, fn func(body []byte) error) error {
	return s.exchange([]request{{m: m, read: fn}})
}

// receive reads one datagram, which is valid until the next call.
func (s *socket) receive() ([]byte, error) {
	var n int
	if err := restart(func() (err error) {
		n, _, err = unix.Recvfrom(s.fd, s.buf, unix.MSG_TRUNC)
		return err
	}); err != nil {
		return nil, fmt.Errorf("receive from the kernel: %w", err)
	}
	if n > len(s.buf) {
		return nil, fmt.Errorf("receive from the kernel: %w: %d of %d bytes", errTruncated, len(s.buf), n)
	}
	return s.buf[:n], nil
}

// answer reads the end of an answer: an errno, the header of the request, and
// attributes.
func answer(body []byte) error {
	if len(body) < 4 {
		return nil // the end of a list, in old kernels
	}
	errno := int32(native.Uint32(body))
	if errno == 0 {
		return nil
	}
	e := &KernelError{Errno: unix.Errno(-errno)}
	if rest := body[4:]; len(rest) >= unix.NLMSG_HDRLEN {
		// A text that cannot be read does not hide the errno.
		_ = eachAttr(rest[unix.NLMSG_HDRLEN:], func(typ uint16, value []byte) {
			if typ == unix.NLMSGERR_ATTR_MSG {
				e.Text = unix.ByteSliceToString(value)
			}
		})
	}
	return e
}

// restart repeats call while a signal interrupts it.
func restart(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// exchange sends requests in one datagram and reads the answers. It returns the
// first error. Only the last request may ask for a list.
func (s *socket) exchange(all []request) error {
	answered, errs, err := s.converse(all)
	if err != nil {
		s.broken = true
		return err
	}
	return outcome(all, answered, errs)
}

// converse is exchange, but returns the errors of the requests separately.
func (s *socket) converse(all []request) (answered []bool, errs []error, err error) {
	first := s.seq + 1
	data := s.write(all)
	if err := restart(func() error {
		return unix.Sendto(s.fd, data, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	}); err != nil {
		return nil, nil, fmt.Errorf("send to the kernel: %w", err)
	}
	errs = make([]error, len(all))
	answered = make([]bool, len(all))
	s.interrupted = false
	for last := len(all) - 1; !answered[last]; {
		data, err := s.receive()
		if err != nil {
			return nil, nil, err
		}
		err = eachMessage(data, func(h header, body []byte) error {
			i := h.seq - first
			if i >= uint32(len(all)) { // answer to an earlier request that was given up
				return nil
			}
			s.interrupted = s.interrupted || h.flags&unix.NLM_F_DUMP_INTR != 0
			end, err := all[i].take(h.typ, body)
			answered[i] = answered[i] || end
			if errs[i] == nil {
				errs[i] = err
			}
			return nil
		})
		if err != nil {
			return nil, nil, err
		}
	}
	return answered, errs, nil
}

// write concatenates requests. The kernel reports errors for all of them, in
// order, but success only for the last one; before that, only queries have
// another answer.
func (s *socket) write(all []request) []byte {
	var data []byte
	for i, q := range all {
		s.seq++
		if i < len(all)-1 {
			q.m.quiet()
		}
		if b := q.m.finish(s.seq); i > 0 {
			data = append(data, b...)
		} else {
			data = b
		}
	}
	return data
}

package links

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/thread"
	"github.com/embedcni/cni/netns"
)

// Conn is a route netlink socket in a namespace: one small buffer that is used
// again, no lists that grow with what is in the namespace, and the kernel's own
// words in its errors. It is for one goroutine at a time, and is closed by
// whoever opened it.
type Conn struct {
	fd  int
	seq uint32
	buf []byte

	home   *Conns   // that it goes back to, if it is borrowed
	ns     netns.ID // where it is then
	broken bool     // an exchange has not come to its end
}

// bufferSize is enough for one message, whatever is in it, and for some dozen
// of those of a dump: the kernel fills no more than what is read at once.
const bufferSize = 8 << 10

// answerTime is how long an answer may take, in seconds. The kernel works
// while the request is sent, and has answered when that returns, so an answer
// that takes any time is one that was lost.
const answerTime = 5

// Dial opens a socket in a namespace. The sysctls are set meanwhile, as both
// need a thread that is inside; see [Conn.SetSysctls].
func Dial(ns *netns.Handle, sysctls ...Sysctl) (c *Conn, err error) {
	err = thread.In(ns, func() (err error) {
		if c, err = dial(); err != nil {
			return err
		}
		unset, err := c.unset(sysctls)
		if err == nil {
			err = writeSysctls(unset)
		}
		if err != nil {
			return errors.Join(err, c.Close())
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("in namespace %s: %w", ns.ID(), err)
	}
	return c, nil
}

// dial opens a socket in the namespace of the calling thread.
func dial() (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	c := &Conn{fd: fd, buf: make([]byte, bufferSize)}
	if err := c.prepare(); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare a netlink socket: %w", err), c.Close())
	}
	return c, nil
}

func (c *Conn) prepare() error {
	if err := unix.Bind(c.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	if err := unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: answerTime}); err != nil {
		return err
	}
	// Errors with words since Linux 4.12; dumps that the kernel filters since
	// 4.20. Without the latter the answers are longer, and filtered here.
	for _, option := range []int{unix.NETLINK_EXT_ACK, unix.NETLINK_CAP_ACK, unix.NETLINK_GET_STRICT_CHK} {
		err := unix.SetsockoptInt(c.fd, unix.SOL_NETLINK, option, 1)
		if err != nil && !errors.Is(err, unix.ENOPROTOOPT) {
			return err
		}
	}
	return nil
}

// Close closes the socket, or gives it back. Calling it again does nothing.
func (c *Conn) Close() error {
	if c.fd < 0 || c.home != nil && c.home.give(c) {
		return nil
	}
	fd := c.fd
	c.fd = -1
	if err := unix.Close(fd); err != nil {
		return fmt.Errorf("close a netlink socket: %w", err)
	}
	return nil
}

// KernelError is an answer of the kernel's that says no.
type KernelError struct {
	Errno unix.Errno
	Text  string // what the kernel says about it, or empty
}

func (e *KernelError) Error() string {
	if e.Text == "" {
		return e.Errno.Error()
	}
	return fmt.Sprintf("%s (%s)", e.Errno.Error(), e.Text)
}

func (e *KernelError) Unwrap() error { return e.Errno }

// execute sends a request and calls fn, which may be nil, for the messages that
// answer it. A request without NLM_F_ACK and NLM_F_DUMP is one for one message.
func (c *Conn) execute(m *message, fn func(body []byte) error) error {
	return c.exchange([]request{{m: m, read: fn}})
}

// receive reads one datagram, which is valid until the next call.
func (c *Conn) receive() ([]byte, error) {
	var n int
	if err := restart(func() (err error) {
		n, _, err = unix.Recvfrom(c.fd, c.buf, unix.MSG_TRUNC)
		return err
	}); err != nil {
		return nil, fmt.Errorf("receive from the kernel: %w", err)
	}
	if n > len(c.buf) {
		return nil, fmt.Errorf("receive from the kernel: %w: %d of %d bytes", errTruncated, len(c.buf), n)
	}
	return c.buf[:n], nil
}

// answer reads the end of an answer: an errno, the header of the request, and
// attributes.
func answer(body []byte) error {
	if len(body) < 4 {
		return nil // the end of a dump, in old kernels
	}
	errno := int32(native.Uint32(body))
	if errno == 0 {
		return nil
	}
	e := &KernelError{Errno: unix.Errno(-errno)}
	if rest := body[4:]; len(rest) >= unix.NLMSG_HDRLEN {
		// A text that cannot be read takes nothing from the errno.
		_ = eachAttr(rest[unix.NLMSG_HDRLEN:], func(typ uint16, value []byte) {
			if typ == unix.NLMSGERR_ATTR_MSG {
				e.Text = text(value)
			}
		})
	}
	return e
}

// restart repeats call for as long as a signal interrupts it.
func restart(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

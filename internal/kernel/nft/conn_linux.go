package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/joined"
)

var (
	// ErrNotSupported means that the kernel has no nf_tables, and so no rules in it.
	ErrNotSupported = errors.New("the kernel has no nf_tables")

	// ErrChanged means that rules of the namespace have changed since they were
	// listed, or while they were.
	ErrChanged = errors.New("the rules have changed meanwhile")

	// ErrUncertain means that a transaction was sent and its outcome is unknown.
	ErrUncertain = errors.New("the packet filter may have changed or not")

	errNoAnswer = errors.New("the kernel has not answered")
)

// Error is the kernel's refusal of one message.
type Error struct {
	Object fmt.Stringer // of the refused message; nil: the whole transaction
	Errno  unix.Errno
}

func (e *Error) Error() string {
	why := e.Errno.Error()
	if e.Errno == unix.EPERM {
		why += ": it needs the capability CAP_NET_ADMIN in the user namespace that owns the network namespace"
	}
	if e.Object == nil {
		return why
	}
	return fmt.Sprintf("%v: %s", e.Object, why)
}

func (e *Error) Unwrap() error { return e.Errno }

// Conn is a netlink socket to nf_tables in the network namespace in which it was
// opened, on any thread. It is not safe for concurrent use.
//
// It needs no poller: the kernel handles a message before the system call that
// sends it returns, so the answer is there by then. Only other transactions in
// progress can delay it.
type Conn struct {
	fd       int
	sequence uint32
	out, in  []byte
	watched  bool // by inOneGeneration, which notices what interrupts a list
}

// Open opens a Conn in the namespace of the calling thread. Most callers use
// [Sockets.Do].
func Open() (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, ErrNotSupported
	}
	if err != nil {
		return nil, fmt.Errorf("netlink socket to the packet filter: %w", err)
	}
	// Without this option, an error carries a copy of the message.
	if err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1); err == nil {
		err = bind(fd)
	}
	if err != nil {
		return nil, joined.Errors(fmt.Errorf("netlink socket to the packet filter: %w", err), unix.Close(fd))
	}
	return &Conn{fd: fd, in: make([]byte, 32<<10)}, nil
}

// The ports of Conns, of all processes, begin with the same 20 bits. The kernel announces
// the port with each change, so a [Listener] knows the changes that were made by this
// package. The kernel gives a port of this form to one in 500,000 sockets of others, or
// fewer: usually a socket's port is the number of its process.
const (
	ownPorts     = 0xec2d1 << ownPortsBits
	ownPortsBits = 12
)

func isOwnPort(port uint32) bool { return port>>ownPortsBits == ownPorts>>ownPortsBits }

// bind gives a socket a port of its own. If it finds none that is free, the kernel will
// choose one; then a guard looks at its containers after changes of this package, too.
func bind(fd int) (err error) {
	const tries = 16
	for range tries {
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: ownPorts | rand.Uint32N(1<<ownPortsBits)})
		if !errors.Is(err, unix.EADDRINUSE) {
			return err
		}
	}
	return nil
}

// Close closes the socket. If anyone has just deleted rules or elements, the
// kernel first waits until they are freed: about ten milliseconds, in which no
// one else can change rules.
func (c *Conn) Close() error { return unix.Close(c.fd) }

// Transact applies all of the messages, or none. With a generation it does so
// only if the rules of the namespace are still of that one; else the error is
// ErrChanged. If the kernel refuses a message, the error is an [*Error]; if its answer
// is lost, ErrUncertain.
func (c *Conn) Transact(msgs []Message, generation *uint32) error {
	begin := []byte(nil)
	if generation != nil {
		begin = number(unix.NFNL_BATCH_GENID, *generation)
	}
	first := c.sequence + 1
	c.out = appendMessage(c.out[:0], unix.NFNL_MSG_BATCH_BEGIN, 0, first, ofTables(), begin)
	for i, m := range msgs {
		if i == len(msgs)-1 {
			// One answer covers the whole transaction. More could overflow the socket.
			m.flags |= unix.NLM_F_ACK
		}
		c.out = m.appendTo(c.out, first+1+uint32(i))
	}
	last := first + 1 + uint32(len(msgs))
	c.out = appendMessage(c.out, unix.NFNL_MSG_BATCH_END, 0, last, ofTables(), nil)
	c.sequence = last
	if err := c.send(); err != nil {
		return err
	}
	return c.outcome(first, msgs)
}

// ofTables returns the header of a batch for nf_tables.
func ofTables() [4]byte {
	return [4]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES}
}

// outcome reads the answer to a transaction: the first refusal, or that the last
// message succeeded.
func (c *Conn) outcome(first uint32, msgs []Message) error {
	var refused *Error
	answered := false
	err := c.receive(func(h header, data []byte) bool {
		if h.typ != unix.NLMSG_ERROR || len(data) < 4 || h.sequence < first {
			return false
		}
		answered = true
		errno := readErrno(data)
		if errno == 0 {
			return true // it is for the last message
		}
		if refused != nil {
			return false
		}
		refused = &Error{Errno: errno}
		if i := int(h.sequence - first - 1); h.sequence > first && i < len(msgs) {
			refused.Object = msgs[i].object
		}
		return false
	})
	switch {
	case err != nil && !errors.Is(err, errNoAnswer):
		return fmt.Errorf("%w: %w", ErrUncertain, err)
	case !answered:
		return fmt.Errorf("%w: a transaction of %d messages: %w", ErrUncertain, len(msgs), errNoAnswer)
	case refused == nil:
		return nil
	case refused.Errno == unix.ERESTART:
		return ErrChanged
	}
	return refused
}

// readErrno reads the payload of NLMSG_ERROR and NLMSG_DONE: a negative errno.
func readErrno(data []byte) unix.Errno {
	if len(data) < 4 {
		return unix.EPROTO
	}
	return unix.Errno(-int32(binary.NativeEndian.Uint32(data)))
}

// ask sends a request, and calls each with the answers: one, those of a list, or none for an
// object that does not exist. If the kernel interrupted the list, because rules have changed,
// the error is ErrChanged, after each was called with all that came.
func (c *Conn) ask(m Message, each func(data []byte) error) error {
	c.sequence++
	c.out = m.appendTo(c.out[:0], c.sequence)
	if err := c.send(); err != nil {
		return err
	}
	var failed error
	interrupted := false // the list may be incomplete
	err := c.receive(func(h header, data []byte) bool {
		if h.sequence != c.sequence {
			return false
		}
		interrupted = interrupted || h.flags&unix.NLM_F_DUMP_INTR != 0
		if h.typ == unix.NLMSG_ERROR || h.typ == unix.NLMSG_DONE {
			if len(data) >= 4 && failed == nil {
				if errno := readErrno(data); int32(errno) > 0 && errno != unix.ENOENT {
					failed = &Error{m.object, errno}
				}
			}
			return true
		}
		if failed == nil {
			failed = each(data)
		}
		return m.flags&unix.NLM_F_DUMP == 0
	})
	if err == nil && failed == nil && interrupted && !c.watched {
		failed = ErrChanged
	}
	return joined.Errors(err, failed)
}

func (c *Conn) send() error {
	for {
		err := unix.Sendto(c.fd, c.out, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EMSGSIZE):
			if err := c.grow(2 * len(c.out)); err != nil {
				return fmt.Errorf("a transaction of %d bytes: %w", len(c.out), err)
			}
		case err != nil:
			return fmt.Errorf("send to the packet filter: %w", err)
		default:
			return nil
		}
	}
}

// grow makes room for a transaction of size bytes: a thousand ports take more
// than the usual 200 KiB. Outside the host's user namespace the limit is
// net.core.wmem_max.
func (c *Conn) grow(size int) error {
	if unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, size) == nil {
		return nil
	}
	before, err := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
	if err != nil {
		return err
	}
	if err := unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, size); err != nil {
		return err
	}
	after, err := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
	if err == nil && after <= before {
		err = fmt.Errorf("%w: net.core.wmem_max allows %d", unix.EMSGSIZE, after)
	}
	return err
}

// header holds the fields of struct nlmsghdr that matter here.
type header struct {
	typ, flags uint16
	sequence   uint32
}

// receive calls each with the kernel's answers, until it returns true.
func (c *Conn) receive(each func(h header, data []byte) bool) error {
	for {
		n, _, err := unix.Recvfrom(c.fd, c.in, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ENOBUFS):
			continue // many messages of a transaction were refused; the first answers are there
		case errors.Is(err, unix.EAGAIN):
			return errNoAnswer
		case err != nil:
			return fmt.Errorf("receive from the packet filter: %w", err)
		case n > len(c.in):
			return fmt.Errorf("receive from the packet filter: an answer of %d bytes", n)
		}
		for b := c.in[:n]; len(b) >= messageHeader; {
			size := int(binary.NativeEndian.Uint32(b))
			if size < messageHeader || size > len(b) {
				return errors.New("receive from the packet filter: a message is cut off")
			}
			h := header{binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint16(b[6:]), binary.NativeEndian.Uint32(b[8:])}
			if each(h, b[messageHeader:size]) {
				return nil
			}
			b = b[min((size+3)&^3, len(b)):]
		}
	}
}

// The limits of tries if others change rules meanwhile.
const (
	// MostChanges is for a look and a change, which follow each other within a millisecond.
	MostChanges = 1000
	// MostReads is for a long list. On a host that starts containers all the time, it may
	// never be complete.
	MostReads = 3
)

// untilUnchanged repeats fn while it fails with ErrChanged.
func untilUnchanged(ctx context.Context, most int, fn func() error) (err error) {
	for range most {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err = fn(); !errors.Is(err, ErrChanged) {
			return err
		}
	}
	return fmt.Errorf("%w, %d times", err, most)
}

// Look calls read, whose lists take several messages, again if rules change meanwhile. After
// so many tries it fails with ErrChanged, and read has seen all that came.
func (c *Conn) Look(ctx context.Context, most int, read func() error) error {
	return untilUnchanged(ctx, most, func() error {
		_, err := c.inOneGeneration(read)
		return err
	})
}

// inOneGeneration calls read, and fails with ErrChanged if rules change meanwhile.
func (c *Conn) inOneGeneration(read func() error) (generation uint32, err error) {
	before, err := c.Generation()
	if err != nil {
		return 0, err
	}
	c.watched = true
	err = read()
	c.watched = false
	if err != nil {
		return 0, err
	}
	if generation, err = c.Generation(); err == nil && generation != before {
		err = ErrChanged
	}
	return generation, err
}

// Change applies the messages that find returns, all or none, if nothing has changed since
// find was called; else it calls find again.
func (c *Conn) Change(ctx context.Context, find func() ([]Message, error)) error {
	return untilUnchanged(ctx, MostChanges, func() error {
		var msgs []Message
		generation, err := c.inOneGeneration(func() (err error) {
			msgs, err = find()
			return err
		})
		if err != nil || len(msgs) == 0 {
			return err
		}
		return c.Transact(msgs, &generation) // which waits for the transactions of others
	})
}

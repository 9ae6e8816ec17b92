package links

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/thread"
	"github.com/embedcni/cni/netns"
)

// Conn is a route netlink socket in a namespace. It reuses one small buffer, and puts
// the kernel's own words into its errors. Only one goroutine may use it at a time. The
// caller that opened it closes it.
//
// It is not a netlink.Handle, which tells the kernel's words only after a change of a
// variable of the whole process, needs three messages for a veth pair on a bridge, and
// takes 20 µs instead of 8 to look up an interface.
type Conn struct {
	fd     int // negative when it is closed
	seq    uint32
	buf    []byte
	broken bool     // an exchange was not finished
	home   *Conns   // owner, if it is borrowed
	ns     netns.ID // its namespace in that case
}

// Dial opens a socket in a namespace.
func Dial(ns *netns.Handle) (c *Conn, err error) {
	err = thread.In(ns, func() (err error) {
		c, err = dial()
		return err
	})
	if err == nil {
		return c, nil
	}
	if c != nil { // the thread is lost
		err = joined.Errors(err, c.Close())
	}
	return nil, fmt.Errorf("in namespace %s: %w", ns.ID(), err)
}

// bufferSize is enough for any one message, and for some dozens of a list: the
// kernel sends no more than one read returns.
const bufferSize = 8 << 10

// answerTime limits the wait for an answer, in seconds. The kernel has answered
// when the sending call returns, so an answer that takes any time was lost.
const answerTime = 5

// dial opens a socket in the namespace of the calling thread.
func dial() (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	err = joined.Errors(unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: answerTime}))
	// Linux 4.12 added error texts, and 4.20 filtered lists. Without the latter
	// the answers are longer, and filtered here.
	for _, option := range []int{unix.NETLINK_EXT_ACK, unix.NETLINK_CAP_ACK, unix.NETLINK_GET_STRICT_CHK} {
		if e := unix.SetsockoptInt(fd, unix.SOL_NETLINK, option, 1); !errors.Is(e, unix.ENOPROTOOPT) {
			err = joined.Errors(err, e)
		}
	}
	if err != nil {
		return nil, joined.Errors(fmt.Errorf("prepare a netlink socket: %w", err), unix.Close(fd))
	}
	return &Conn{fd: fd, buf: make([]byte, bufferSize)}, nil
}

// Close closes the socket or gives it back. Further calls do nothing.
func (c *Conn) Close() error {
	if c.fd < 0 || c.home != nil && c.home.give(c) {
		return nil
	}
	fd := c.fd
	c.fd = -1
	return saying("close a netlink socket", unix.Close(fd))
}

// execute sends a request and calls read, which may be nil, for each message of
// the answer. A request without NLM_F_ACK and NLM_F_DUMP is a query for one
// message.
func (c *Conn) execute(m *nl.NetlinkRequest, read func(message)) error {
	c.seq++
	m.Seq = c.seq
	request := m.Serialize()
	err := restart(func() error {
		return unix.Sendto(c.fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	})
	if err != nil {
		return fmt.Errorf("send to the kernel: %w", err)
	}
	x := exchange{seq: m.Seq, asks: m.Flags&(unix.NLM_F_ACK|unix.NLM_F_DUMP) == 0, read: read}
	for !x.answered {
		messages, err := c.receive()
		if err != nil {
			c.broken = true
			return fmt.Errorf("receive from the kernel: %w", err)
		}
		for _, message := range messages {
			x.take(message)
		}
	}
	if x.err == nil && x.interrupted {
		return ErrInterrupted
	}
	return x.err
}

// ErrInterrupted means that a list changed while the kernel sent it, so something may
// be missing in it.
var ErrInterrupted error = nl.ErrDumpInterrupted

// receive reads one datagram, which is valid until the next call.
func (c *Conn) receive() (messages []syscall.NetlinkMessage, err error) {
	var n int
	err = restart(func() (err error) {
		n, _, err = unix.Recvfrom(c.fd, c.buf, unix.MSG_TRUNC)
		return err
	})
	if err == nil && n > len(c.buf) {
		err = fmt.Errorf("%w: %d of %d bytes", errTruncated, len(c.buf), n)
	}
	if err != nil {
		return nil, err
	}
	return syscall.ParseNetlinkMessage(c.buf[:n])
}

// restart repeats call while a signal interrupts it.
func restart(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// exchange is a request whose answer is being read.
type exchange struct {
	seq         uint32
	asks        bool // for one message
	read        func(message)
	answered    bool
	interrupted bool
	err         error // the first
}

func (x *exchange) take(m syscall.NetlinkMessage) {
	if m.Header.Seq != x.seq { // an answer to an earlier request that was given up
		return
	}
	x.interrupted = x.interrupted || m.Header.Flags&unix.NLM_F_DUMP_INTR != 0
	var err error
	switch {
	case m.Header.Type == unix.NLMSG_ERROR, m.Header.Type == unix.NLMSG_DONE:
		x.answered, err = true, answer(m.Data)
	case x.read != nil && x.err == nil:
		got := parse(m.Header.Type, m.Data)
		x.read(got)
		x.answered, err = x.asks, *got.bad
	}
	if x.err == nil {
		x.err = err
	}
}

// answer reads the end of an answer: an errno, the header of the request, and
// attributes.
func answer(body []byte) error {
	if len(body) < 4 || native.Uint32(body) == 0 { // or the end of a list, in old kernels
		return nil
	}
	errno := unix.Errno(-int32(native.Uint32(body)))
	more := attributes{bad: new(error)} // a text that cannot be read does not hide the errno
	if text := more.within(body[min(len(body), 4+unix.NLMSG_HDRLEN):]).str(unix.NLMSGERR_ATTR_MSG); text != "" {
		return fmt.Errorf("%w (%s)", errno, text)
	}
	return errno
}

// ErrTorn means that a list changed while the kernel sent it, in each of several
// attempts. The last list comes with it; something may be missing in it that was
// there all the time.
var ErrTorn = errors.New("it changed during each attempt to read it")

// mostLists limits the attempts at a list that changes while the kernel sends
// it.
const mostLists = 10

// list asks for a list, and calls read for each of its messages. If the list
// changed while the kernel sent it (NLM_F_DUMP_INTR), list asks again. It calls
// begin before each attempt, which must forget the attempt before.
func (c *Conn) list(m *nl.NetlinkRequest, begin func(), read func(message)) error {
	for range mostLists {
		begin()
		if err := c.execute(m, read); !errors.Is(err, ErrInterrupted) {
			return err
		}
	}
	return fmt.Errorf("%w (%d attempts)", ErrTorn, mostLists)
}

// listFamilies asks for the addresses or routes of IPv4, and then of IPv6, by a
// request that begins with the family. add appends the elements of one message of
// the answer.
//
// A request for all families at once would keep other users of rtnetlink waiting
// (Linux 6.10 lists each of these two without its lock), and ask families that
// this package cannot read.
func listFamilies[T any](c *Conn, request func(family byte) *nl.NetlinkRequest, add func(all []T, m message) []T) ([]T, error) {
	var all []T
	var torn error
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		before := len(all)
		err := c.list(request(family), func() { all = all[:before] }, func(m message) {
			if m.body[0] == family { // a kernel without IPv6 answers with all families
				all = add(all, m)
			}
		})
		switch {
		case errors.Is(err, ErrTorn):
			torn = err
		case errors.Is(err, unix.EOPNOTSUPP): // a kernel without IPv6
		case err != nil:
			return nil, err
		}
	}
	return all, torn
}

// do is execute, with the operation in the error. It ignores the errors in fine.
func (c *Conn) do(m *nl.NetlinkRequest, read func(message), what string, fine ...error) error {
	err := c.execute(m, read)
	if slices.ContainsFunc(fine, func(f error) bool { return errors.Is(err, f) }) {
		return nil
	}
	return saying(what, err)
}

// saying names the operation in an error.
func saying(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// Conns are sockets that stay open between the plugins of one attachment. Most
// of the plugins need the same two, and opening one takes longer than the
// requests that follow, because a thread must enter the namespace.
//
// They are safe for concurrent use, and the zero Conns are ready for use. An
// open socket keeps its namespace in existence.
type Conns struct {
	mu      sync.Mutex
	idle    map[netns.ID][]*Conn
	sending []chan struct{} // closed when an announcement has begun
	closed  bool
}

// Borrow is [Dial], but reuses an idle socket, and Close gives it back. A nil
// *Conns has none, and Close closes the socket.
func (all *Conns) Borrow(ns *netns.Handle) (*Conn, error) {
	if all == nil {
		return Dial(ns)
	}
	if c := all.take(ns.ID()); c != nil {
		return c, nil
	}
	c, err := Dial(ns)
	if err == nil {
		c.home, c.ns = all, ns.ID()
	}
	return c, err
}

// Lookup returns the interface of that name in a namespace, or nil if there is
// none.
func (all *Conns) Lookup(ns *netns.Handle, name string) (*Link, error) {
	var found *Link
	err := all.Do(ns, func(c *Conn) error {
		l, err := c.Link(name)
		if NotFound(err) {
			return nil
		}
		found = &l
		return saying(fmt.Sprintf("in namespace %s", ns.ID()), err)
	})
	return found, err
}

// Links lists the interfaces of a namespace, like [Conn.Links].
func (all *Conns) Links(ns *netns.Handle) ([]Link, error) {
	var found []Link
	err := all.Do(ns, func(c *Conn) (err error) {
		found, err = c.Links()
		return err
	})
	return found, err
}

// Do calls do with a socket in a namespace, which is open until do returns.
func (all *Conns) Do(ns *netns.Handle, do func(*Conn) error) error {
	c, err := all.Borrow(ns)
	if err != nil {
		return err
	}
	return joined.Errors(do(c), c.Close())
}

func (all *Conns) take(ns netns.ID) *Conn {
	all.mu.Lock()
	defer all.mu.Unlock()
	if list := all.idle[ns]; len(list) > 0 {
		all.idle[ns] = list[:len(list)-1]
		return list[len(list)-1]
	}
	return nil
}

// give takes the socket back, unless all are closed. Unread answers of a failed
// exchange have other sequence numbers; but an unfinished list would block the
// next one.
func (all *Conns) give(c *Conn) bool {
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.closed || c.broken {
		return false
	}
	if all.idle == nil {
		all.idle = make(map[netns.ID][]*Conn)
	}
	kept := *c
	c.fd = -1
	all.idle[c.ns] = append(all.idle[c.ns], &kept)
	return true
}

// expect makes Close wait until sending is closed, unless Close was called
// before.
func (all *Conns) expect(sending chan struct{}) bool {
	if all == nil {
		return false
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	if !all.closed {
		all.sending = append(all.sending, sending)
	}
	return !all.closed
}

// Close closes the idle sockets. The users of the others close those.
func (all *Conns) Close() error {
	all.mu.Lock()
	idle, sending := all.idle, all.sending
	all.idle, all.sending, all.closed = nil, nil, true
	all.mu.Unlock()
	for _, begun := range sending {
		<-begun
	}
	var errs []error
	for ns, list := range idle {
		for _, c := range list {
			if err := c.Close(); err != nil {
				errs = append(errs, fmt.Errorf("in namespace %s: %w", ns, err))
			}
		}
	}
	return joined.Errors(errs...)
}

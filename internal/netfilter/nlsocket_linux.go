package netfilter

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// socket is a netlink socket to the packet filter of the network namespace in
// which it was opened, wherever the calling thread is later. It is not safe for
// concurrent use.
//
// It is used without a poller, as the kernel does what it is asked for before
// the call that sends returns: what it answers is there then, and nothing is
// waited for. All that can take long is that other one's transactions go first.
type socket struct {
	fd       int
	sequence uint32
	out, in  []byte
}

// openSocket opens one in the namespace of the calling thread.
func openSocket() (*socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, errNoNFTables
	}
	if err != nil {
		return nil, fmt.Errorf("netlink socket to the packet filter: %w", err)
	}
	// An error comes with a copy of the message otherwise, which is of no use.
	if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1); err != nil {
		return nil, errors.Join(fmt.Errorf("netlink socket to the packet filter: %w", err), unix.Close(fd))
	}
	return &socket{fd: fd, in: make([]byte, 32<<10)}, nil
}

// close closes the socket. If rules or elements were deleted since a moment
// ago, whoever deleted them, the kernel waits here until they are freed: about
// ten milliseconds, in which no one else can change the rules.
func (s *socket) close() error { return unix.Close(s.fd) }

// refusal is the kernel's no to one message of a transaction.
type refusal struct {
	object fmt.Stringer // nil: the whole transaction
	errno  unix.Errno
}

func (e *refusal) Error() string {
	if e.object == nil {
		return e.errno.Error()
	}
	return fmt.Sprintf("%v: %v", e.object, e.errno)
}

func (e *refusal) Unwrap() error { return e.errno }

// transact does all of the messages, or none. With a generation it does so only
// if the rules of the namespace are still of that one, else the error is
// errChanged. The error for a message that is refused is a *refusal.
func (s *socket) transact(msgs []message, generation *uint32) error {
	begin := []byte(nil)
	if generation != nil {
		begin = appendNumber(nil, unix.NFNL_BATCH_GENID, *generation)
	}
	about := [4]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES}
	first := s.sequence + 1
	s.out = appendMessage(s.out[:0], unix.NFNL_MSG_BATCH_BEGIN, 0, first, about, begin)
	for i, m := range msgs {
		if i == len(msgs)-1 {
			// One answer tells how all of it went. More could overflow the socket.
			m.flags |= unix.NLM_F_ACK
		}
		s.out = m.appendTo(s.out, first+1+uint32(i))
	}
	last := first + 1 + uint32(len(msgs))
	s.out = appendMessage(s.out, unix.NFNL_MSG_BATCH_END, 0, last, about, nil)
	s.sequence = last
	if err := s.send(); err != nil {
		return err
	}
	return s.outcome(first, msgs)
}

// outcome reads how a transaction went: the first refusal, or that the last
// message succeeded.
func (s *socket) outcome(first uint32, msgs []message) error {
	var refused *refusal
	answered := false
	err := s.receive(func(h header, data []byte) bool {
		if h.typ != unix.NLMSG_ERROR || len(data) < 4 || h.sequence < first {
			return false
		}
		answered = true
		errno := unix.Errno(-int32(binary.NativeEndian.Uint32(data)))
		if errno == 0 {
			return true // it is for the last message
		}
		if refused != nil {
			return false
		}
		refused = &refusal{errno: errno}
		if i := int(h.sequence - first - 1); h.sequence > first && i < len(msgs) {
			refused.object = msgs[i].object
		}
		return false
	})
	switch {
	case err != nil && !errors.Is(err, errSilent):
		return err
	case !answered:
		return fmt.Errorf("a transaction of %d messages: %w", len(msgs), errSilent)
	case refused == nil:
		return nil
	case refused.errno == unix.ERESTART:
		return errChanged
	}
	return refused
}

// mostRequests are sent at once: their answers, each of which takes up to 8 KiB
// there, must fit in the socket.
const mostRequests = 16

// ask sends requests for one object each, and returns their answers, nil for
// what does not exist.
func (s *socket) ask(msgs []message) ([][]byte, error) {
	var answers [][]byte
	for chunk := range slices.Chunk(msgs, mostRequests) {
		part, err := s.askSome(chunk)
		if err != nil {
			return nil, err
		}
		answers = append(answers, part...)
	}
	return answers, nil
}

func (s *socket) askSome(msgs []message) ([][]byte, error) {
	first := s.sequence + 1
	s.out = s.out[:0]
	for i, m := range msgs {
		s.out = m.appendTo(s.out, first+uint32(i))
	}
	s.sequence += uint32(len(msgs))
	if err := s.send(); err != nil {
		return nil, err
	}
	answers := make([][]byte, len(msgs))
	var refused error
	left := len(msgs)
	err := s.receive(func(h header, data []byte) bool {
		i := h.sequence - first
		if i >= uint32(len(msgs)) {
			return false
		}
		left--
		if h.typ == unix.NLMSG_ERROR {
			errno := unix.EPROTO
			if len(data) >= 4 {
				errno = unix.Errno(-int32(binary.NativeEndian.Uint32(data)))
			}
			if errno != unix.ENOENT && refused == nil {
				refused = &refusal{msgs[i].object, errno}
			}
		} else {
			answers[i] = slices.Clone(data)
		}
		return left == 0
	})
	if refused != nil {
		err = refused
	}
	return answers, err
}

// dump calls each with the answers to a request for all of something. What does
// not exist has none.
func (s *socket) dump(m message, each func(data []byte) error) error {
	m.flags |= unix.NLM_F_DUMP
	s.sequence++
	s.out = m.appendTo(s.out[:0], s.sequence)
	if err := s.send(); err != nil {
		return err
	}
	var failed error
	err := s.receive(func(h header, data []byte) bool {
		if h.sequence != s.sequence {
			return false
		}
		if h.flags&unix.NLM_F_DUMP_INTR != 0 && failed == nil {
			failed = errChanged
		}
		switch h.typ {
		case unix.NLMSG_ERROR, unix.NLMSG_DONE:
			if len(data) >= 4 && failed == nil {
				if n := int32(binary.NativeEndian.Uint32(data)); n < 0 && unix.Errno(-n) != unix.ENOENT {
					failed = &refusal{m.object, unix.Errno(-n)}
				}
			}
			return true
		}
		if failed == nil {
			failed = each(data)
		}
		return false
	})
	return errors.Join(err, failed)
}

func (s *socket) send() error {
	for {
		err := unix.Sendto(s.fd, s.out, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EMSGSIZE):
			if err := s.grow(2 * len(s.out)); err != nil {
				return fmt.Errorf("a transaction of %d bytes: %w", len(s.out), err)
			}
		case err != nil:
			return fmt.Errorf("send to the packet filter: %w", err)
		default:
			return nil
		}
	}
}

// grow makes room for a transaction of that many bytes, which is as large as
// it has to be: a thousand ports take more than the usual 200 KiB. Where this
// is not the host's root, the limit is net.core.wmem_max.
func (s *socket) grow(size int) error {
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, size) == nil {
		return nil
	}
	before, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
	if err != nil {
		return err
	}
	if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, size); err != nil {
		return err
	}
	after, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
	if err == nil && after <= before {
		err = fmt.Errorf("%w: net.core.wmem_max allows %d", unix.EMSGSIZE, after)
	}
	return err
}

// errSilent means that the kernel has nothing more to say.
var errSilent = errors.New("the kernel has not answered")

// header is what is looked at of a struct nlmsghdr.
type header struct {
	typ, flags uint16
	sequence   uint32
}

// receive calls each with what the kernel has answered, until it returns true.
func (s *socket) receive(each func(h header, data []byte) bool) error {
	for {
		n, _, err := unix.Recvfrom(s.fd, s.in, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ENOBUFS):
			continue // a transaction of which many messages are refused: the first answers are there
		case errors.Is(err, unix.EAGAIN):
			return errSilent
		case err != nil:
			return fmt.Errorf("receive from the packet filter: %w", err)
		case n > len(s.in):
			return fmt.Errorf("receive from the packet filter: an answer of %d bytes", n)
		}
		for b := s.in[:n]; len(b) >= messageHeader; {
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

// currentGeneration is the message that asks for it; see [readGeneration].
func currentGeneration() message {
	return message{typ: unix.NFT_MSG_GETGEN, family: unix.AF_UNSPEC, object: text("the generation")}
}

func readGeneration(answer []byte) (uint32, error) {
	if answer == nil {
		return 0, errNoNFTables
	}
	ad, err := attributes(answer)
	if err != nil {
		return 0, err
	}
	for ad.Next() {
		if ad.Type() == unix.NFTA_GEN_ID {
			return ad.Uint32(), nil
		}
	}
	return 0, errors.New("ask for the generation: no answer")
}

// text is the name of an object.
type text string

func (t text) String() string { return string(t) }

// openKey is the key of the socket that a context carries.
type openKey struct{}

// withSocket runs fn with the socket of the context, or with one in the
// namespace of the calling thread.
func withSocket(ctx context.Context, fn func(*socket) error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if s, ok := ctx.Value(openKey{}).(*socket); ok {
		return fn(s)
	}
	s, err := openSocket()
	if err != nil {
		return err
	}
	return errors.Join(fn(s), s.close())
}

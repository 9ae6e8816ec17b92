package links

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// message is a route netlink request under construction (RFC 3549, section 2.2;
// <linux/netlink.h>): a header, a fixed part, attributes.
type message struct{ b []byte }

// native is the byte order of netlink, which is the machine's.
var native = binary.NativeEndian

// align is the alignment of attributes and messages.
const align = 4

// newMessage begins a request. NLM_F_REQUEST is implied.
func newMessage(typ, flags uint16, fixed []byte) *message {
	m := &message{b: make([]byte, unix.NLMSG_HDRLEN, 256)}
	native.PutUint16(m.b[4:], typ)
	native.PutUint16(m.b[6:], flags|unix.NLM_F_REQUEST)
	m.b = append(m.b, fixed...)
	return m
}

func (m *message) attr(typ uint16, data []byte) {
	m.b = native.AppendUint16(m.b, uint16(unix.SizeofRtAttr+len(data)))
	m.b = native.AppendUint16(m.b, typ)
	m.b = append(m.b, data...)
	for len(m.b)%align != 0 {
		m.b = append(m.b, 0)
	}
}

func (m *message) u32(typ uint16, v uint32) { m.attr(typ, native.AppendUint32(nil, v)) }
func (m *message) u8(typ uint16, v bool)    { m.attr(typ, []byte{bit(v)}) }
func (m *message) str(typ uint16, s string) { m.attr(typ, append([]byte(s), 0)) }

// nest adds an attribute that contains the attributes that fn adds.
func (m *message) nest(typ uint16, fn func()) {
	begin := len(m.b)
	m.attr(typ, nil)
	fn()
	native.PutUint16(m.b[begin:], uint16(len(m.b)-begin))
}

// finish returns the request with its length and sequence number.
func (m *message) finish(seq uint32) []byte {
	native.PutUint32(m.b, uint32(len(m.b)))
	native.PutUint32(m.b[8:], seq)
	return m.b
}

func (m *message) flags() uint16 { return native.Uint16(m.b[6:]) }

// quiet suppresses the acknowledgement: the kernel answers only errors and
// queries.
func (m *message) quiet() {
	native.PutUint16(m.b[6:], m.flags()&^unix.NLM_F_ACK)
}

// asks reports whether the request is a query with an answer of one message.
func (m *message) asks() bool {
	typ := native.Uint16(m.b[4:])
	return typ&3 == getRequest && m.flags()&(unix.NLM_F_ACK|unix.NLM_F_DUMP) == 0
}

// getRequest is the value of the two lowest type bits in queries; other requests
// create, delete and change.
const getRequest = 2

func bit(v bool) byte {
	if v {
		return 1
	}
	return 0
}

// errTruncated means that the kernel sent less than it announced.
var errTruncated = errors.New("truncated netlink message")

// header is the header of a message, struct nlmsghdr without its length.
type header struct {
	typ, flags uint16
	seq        uint32
}

// eachMessage calls fn for each message of a datagram.
func eachMessage(data []byte, fn func(h header, body []byte) error) error {
	for len(data) >= unix.NLMSG_HDRLEN {
		size := int(native.Uint32(data))
		if size < unix.NLMSG_HDRLEN || size > len(data) {
			return fmt.Errorf("%w: %d of %d bytes", errTruncated, len(data), size)
		}
		h := header{typ: native.Uint16(data[4:]), flags: native.Uint16(data[6:]), seq: native.Uint32(data[8:])}
		if err := fn(h, data[unix.NLMSG_HDRLEN:size]); err != nil {
			return err
		}
		data = data[min(aligned(size), len(data)):]
	}
	return nil
}

// eachAttr calls fn for each attribute, and clears the flags in the type.
func eachAttr(data []byte, fn func(typ uint16, value []byte)) error {
	for len(data) >= unix.SizeofRtAttr {
		size := int(native.Uint16(data))
		if size < unix.SizeofRtAttr || size > len(data) {
			return fmt.Errorf("%w: attribute of %d bytes in %d", errTruncated, size, len(data))
		}
		fn(native.Uint16(data[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), data[unix.SizeofRtAttr:size])
		data = data[min(aligned(size), len(data)):]
	}
	return nil
}

func aligned(n int) int { return (n + align - 1) &^ (align - 1) }

// number reads an integer of any size.
func number(value []byte) uint32 {
	switch len(value) {
	case 1:
		return uint32(value[0])
	case 2:
		return uint32(native.Uint16(value))
	case 4:
		return native.Uint32(value)
	}
	return 0
}

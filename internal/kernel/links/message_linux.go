package links

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/joined"
)

// native is the byte order of netlink, which is the machine's.
var native = binary.NativeEndian

// request begins a request: a fixed part, and attributes.
func request(typ, flags int, fixed nl.NetlinkRequestData, attrs ...attribute) *nl.NetlinkRequest {
	m := nl.NewNetlinkRequest(typ, flags)
	m.AddData(fixed)
	for _, a := range attrs {
		m.AddData(a)
	}
	return m
}

// ifinfo is the fixed part of a request about an interface, which changes the flags
// in the mask.
func ifinfo(index int, flags, mask uint32) *nl.IfInfomsg {
	m := nl.NewIfInfomsg(unix.AF_UNSPEC)
	m.Index, m.Flags, m.Change = int32(index), flags, mask
	return m
}

// portinfo is ifinfo for an interface as the port of a bridge.
func portinfo(index int) *nl.IfInfomsg {
	m := nl.NewIfInfomsg(unix.AF_BRIDGE)
	m.Index = int32(index)
	return m
}

// attribute is an attribute of a request. Those of package nl take four times the
// allocations.
type attribute []byte

func (a attribute) Serialize() []byte { return a }
func (a attribute) Len() int          { return len(a) }

// data is an attribute of bytes.
func data(typ uint16, b ...byte) attribute {
	size := unix.SizeofRtAttr + len(b)
	a := make(attribute, 0, aligned(size))
	a = native.AppendUint16(native.AppendUint16(a, uint16(size)), typ)
	return append(a, b...)[:cap(a)]
}

// mac and mtu are attributes of an interface, or empty without a value.
func mac(a net.HardwareAddr) attribute {
	if a == nil {
		return nil
	}
	return data(unix.IFLA_ADDRESS, a...)
}

func mtu(n int) attribute {
	if n == 0 {
		return nil
	}
	return u32(unix.IFLA_MTU, uint32(n))
}

func u32(typ uint16, v uint32) attribute { return data(typ, native.AppendUint32(nil, v)...) }
func str(typ uint16, s string) attribute { return data(typ, append([]byte(s), 0)...) }
func namespace(fd uintptr) attribute     { return u32(unix.IFLA_NET_NS_FD, uint32(fd)) }

// nest is an attribute that contains others.
func nest(typ uint16, attrs ...attribute) attribute { return data(typ, slices.Concat(attrs...)...) }

// info describes what is particular to a kind of interfaces.
func info(kind string, attrs ...attribute) attribute {
	return nest(unix.IFLA_LINKINFO, str(unix.IFLA_INFO_KIND, kind), nest(unix.IFLA_INFO_DATA, attrs...))
}

func aligned(n int) int { return (n + unix.RTA_ALIGNTO - 1) &^ (unix.RTA_ALIGNTO - 1) }

// errTruncated means that the kernel sent less than it announced.
var errTruncated = errors.New("truncated netlink message")

// message is one of the kernel's: a fixed part, and attributes.
type message struct {
	body []byte // with the fixed part
	attributes
}

// attributes are those of a message, or of one of its attributes.
type attributes struct {
	raw []byte
	bad *error // of the message: it is shorter than it says. Where it ends there are none.
}

// parse reads a message of the kernel. If it is too short, its fixed part is zero.
func parse(typ uint16, body []byte) message {
	m := message{body, attributes{bad: new(error)}}
	size := fixedSize(typ)
	if len(body) < size {
		*m.bad, m.body = fmt.Errorf("%w of %d bytes", errTruncated, len(body)), make([]byte, size)
		return m
	}
	m.attributes = m.within(body[size:])
	return m
}

// fixedSize returns the size of the fixed part. The types of messages come in fours: an
// object is new, deleted, asked for or set.
func fixedSize(typ uint16) int {
	switch typ &^ 3 {
	case unix.RTM_NEWLINK:
		return unix.SizeofIfInfomsg
	case unix.RTM_NEWADDR, unix.RTM_GETMULTICAST &^ 3:
		return unix.SizeofIfAddrmsg
	case unix.RTM_NEWROUTE:
		return unix.SizeofRtMsg
	case unix.RTM_NEWNEIGH:
		return unix.SizeofNdMsg
	case unix.RTM_NEWQDISC, unix.RTM_NEWTFILTER:
		return nl.SizeofTcMsg
	}
	return aligned(unix.SizeofRtGenmsg)
}

// within checks and returns the attributes in a part of the message.
func (all attributes) within(raw []byte) attributes {
	for rest := raw; len(rest) >= unix.SizeofRtAttr; {
		size := int(native.Uint16(rest))
		if size < unix.SizeofRtAttr || size > len(rest) {
			*all.bad = joined.Errors(*all.bad, fmt.Errorf("%w: attribute of %d bytes in %d", errTruncated, size, len(rest)))
			return attributes{bad: all.bad}
		}
		rest = rest[min(aligned(size), len(rest)):]
	}
	return attributes{raw, all.bad}
}

// nest returns the attributes in another one.
func (all attributes) nest(typ uint16) attributes { return all.within(all.get(typ)) }

// each goes over the types, without flags, and values.
func (all attributes) each(yield func(typ uint16, value []byte) bool) {
	for rest := all.raw; len(rest) >= unix.SizeofRtAttr; {
		size := int(native.Uint16(rest))
		if !yield(native.Uint16(rest[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), rest[unix.SizeofRtAttr:size]) {
			return
		}
		rest = rest[min(aligned(size), len(rest)):]
	}
}

// get returns the value of an attribute, or nil.
func (all attributes) get(typ uint16) []byte {
	for t, value := range all.each {
		if t == typ {
			return value
		}
	}
	return nil
}

func (all attributes) str(typ uint16) string { return unix.ByteSliceToString(all.get(typ)) }
func (all attributes) num(typ uint16) uint32 { return number(all.get(typ)) }
func (all attributes) int(typ uint16) int    { return int(int32(all.num(typ))) }

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

package links

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
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

// attributes are those of a message, or of one of its attributes.
type attributes []byte

// reader reads the attributes of a message. After an error there are none.
type reader struct{ err error }

// attributes checks and returns the attributes behind a fixed part.
func (r *reader) attributes(body []byte, fixed int) attributes {
	if len(body) < fixed {
		r.err = errors.Join(r.err, fmt.Errorf("%w of %d bytes", errTruncated, len(body)))
		return nil
	}
	rest := body[fixed:]
	for len(rest) >= unix.SizeofRtAttr {
		size := int(native.Uint16(rest))
		if size < unix.SizeofRtAttr || size > len(rest) {
			r.err = errors.Join(r.err, fmt.Errorf("%w: attribute of %d bytes in %d", errTruncated, size, len(rest)))
			return nil
		}
		rest = rest[min(aligned(size), len(rest)):]
	}
	return body[fixed:]
}

// each goes over the types, without flags, and values.
func (all attributes) each(yield func(typ uint16, value []byte) bool) {
	for len(all) >= unix.SizeofRtAttr {
		size := int(native.Uint16(all))
		if !yield(native.Uint16(all[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), all[unix.SizeofRtAttr:size]) {
			return
		}
		all = all[min(aligned(size), len(all)):]
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

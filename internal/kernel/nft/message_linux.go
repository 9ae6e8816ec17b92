package nft

import (
	"encoding/binary"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Message is a request to nf_tables.
type Message struct {
	typ    uint16 // an NFT_MSG number
	flags  uint16 // NLM_F flags besides NLM_F_REQUEST
	family uint8
	attrs  []byte
	object fmt.Stringer // named in errors
}

// About returns the message with another object to name in errors.
func (m Message) About(object fmt.Stringer) Message {
	m.object = object
	return m
}

// text is the name of an object.
type text string

func (t text) String() string { return string(t) }

// The sizes of struct nlmsghdr, struct nfgenmsg and struct nlattr.
const (
	messageHeader   = 16
	netfilterHeader = 4
	attributeHeader = 4
)

func (m Message) appendTo(b []byte, sequence uint32) []byte {
	subsystem := uint16(unix.NFNL_SUBSYS_NFTABLES) << 8
	return appendMessage(b, subsystem|m.typ, m.flags, sequence, [4]byte{m.family, unix.NFNETLINK_V0}, m.attrs)
}

func appendMessage(b []byte, typ, flags uint16, sequence uint32, header [4]byte, attrs []byte) []byte {
	b = binary.NativeEndian.AppendUint32(b, uint32(messageHeader+netfilterHeader+len(attrs)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|flags)
	b = binary.NativeEndian.AppendUint32(b, sequence)
	b = binary.NativeEndian.AppendUint32(b, 0) // the kernel chooses the port
	b = append(b, header[:]...)
	return append(b, attrs...)
}

// attr returns an attribute of these data, padded to a multiple of four bytes.
func attr(typ uint16, data ...[]byte) []byte {
	size := attributeHeader
	for _, d := range data {
		size += len(d)
	}
	b := make([]byte, 0, (size+3)&^3)
	b = binary.NativeEndian.AppendUint16(b, uint16(size))
	b = binary.NativeEndian.AppendUint16(b, typ)
	for _, d := range data {
		b = append(b, d...)
	}
	return b[:(size+3)&^3]
}

// str returns a string that ends with a zero byte.
func str(typ uint16, s string) []byte { return attr(typ, []byte(s), []byte{0}) }

// number returns a number in network byte order, which nf_tables uses.
func number(typ uint16, n uint32) []byte { return attr(typ, binary.BigEndian.AppendUint32(nil, n)) }

// nested returns an attribute of attributes.
func nested(typ uint16, attrs ...[]byte) []byte { return attr(typ|unix.NLA_F_NESTED, attrs...) }

func value(typ uint16, value []byte) []byte { return nested(typ, attr(unix.NFTA_DATA_VALUE, value)) }

// newMessage returns a request about an object of a table, of that name unless it is empty.
func newMessage(typ int, flags uint16, t Table, object string, attrs ...[]byte) Message {
	m := Message{typ: uint16(typ), flags: flags, family: t.Family, attrs: slices.Concat(attrs...)}
	if object != "" {
		m.object = text(object)
	}
	return m
}

// LongestComment is the longest comment that nft lists (NFTNL_UDATA_COMMENT_MAXLEN).
const LongestComment = 128

// userComment returns the user data that nft shows as the comment of a table,
// chain, rule or element: a type, which is 0, a length, and the text with a
// zero byte.
func userComment(comment string) []byte {
	comment = comment[:min(len(comment), LongestComment)]
	return slices.Concat([]byte{0, byte(len(comment) + 1)}, []byte(comment), []byte{0})
}

// readComment is the reverse of userComment. User data can hold more than the
// comment.
func readComment(data []byte) string {
	for len(data) >= 2 {
		typ, n := data[0], int(data[1])
		data = data[2:]
		if n > len(data) {
			return ""
		}
		if typ == 0 && n > 0 {
			return string(data[:n-1])
		}
		data = data[n:]
	}
	return ""
}

// eachAttribute calls each with the attributes in b. It stops at a malformed one.
func eachAttribute(b []byte, each func(typ uint16, data []byte)) {
	for len(b) >= attributeHeader {
		size, typ := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])
		if size < attributeHeader || size > len(b) {
			return
		}
		each(typ&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), b[attributeHeader:size])
		b = b[min((size+3)&^3, len(b)):]
	}
}

// attribute returns the data of the first attribute of a type, or nil.
func attribute(b []byte, wanted uint16) (found []byte) {
	eachAttribute(b, func(typ uint16, data []byte) {
		if typ == wanted && found == nil {
			found = data
		}
	})
	return found
}

// body returns the attributes of a message.
func body(data []byte) []byte { return data[min(netfilterHeader, len(data)):] }

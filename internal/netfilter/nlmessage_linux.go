package netfilter

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// message is a message of nf_tables that is yet to be sent. Its attributes are
// appended to one slice, as an attachment takes a dozen messages and the bytes
// are most of what they cost here.
type message struct {
	typ    uint16 // an NFT_MSG number
	flags  uint16 // NLM_F flags besides NLM_F_REQUEST
	family uint8
	attrs  []byte
	// object is what the message is about, for an error.
	object fmt.Stringer
}

// The sizes of struct nlmsghdr, struct nfgenmsg and struct nlattr.
const (
	messageHeader   = 16
	netfilterHeader = 4
	attributeHeader = 4
)

// appendTo appends the message as it is sent.
func (m message) appendTo(b []byte, sequence uint32) []byte {
	subsystem := uint16(unix.NFNL_SUBSYS_NFTABLES) << 8
	return appendMessage(b, subsystem|m.typ, m.flags, sequence, [4]byte{m.family, unix.NFNETLINK_V0}, m.attrs)
}

// appendMessage appends a message of the netfilter subsystem.
func appendMessage(b []byte, typ, flags uint16, sequence uint32, header [4]byte, attrs []byte) []byte {
	b = binary.NativeEndian.AppendUint32(b, uint32(messageHeader+netfilterHeader+len(attrs)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|flags)
	b = binary.NativeEndian.AppendUint32(b, sequence)
	b = binary.NativeEndian.AppendUint32(b, 0) // from the kernel's choice of port
	b = append(b, header[:]...)
	return append(b, attrs...)
}

// appendAttr appends an attribute, and fills up to a multiple of four bytes.
func appendAttr(b []byte, typ uint16, data []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(attributeHeader+len(data)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, data...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// appendString appends a string that ends with a zero byte.
func appendString(b []byte, typ uint16, s string) []byte {
	return appendAttr(b, typ, zeroTerminated(s))
}

// appendNumber appends a number as nf_tables has them, the highest byte first.
func appendNumber(b []byte, typ uint16, n uint32) []byte {
	return appendAttr(b, typ, binary.BigEndian.AppendUint32(nil, n))
}

// appendNested appends an attribute that holds those that fill appends.
func appendNested(b []byte, typ uint16, fill func([]byte) []byte) []byte {
	start := len(b)
	b = binary.NativeEndian.AppendUint16(b, 0)
	b = binary.NativeEndian.AppendUint16(b, typ|unix.NLA_F_NESTED)
	b = fill(b)
	binary.NativeEndian.PutUint16(b[start:], uint16(len(b)-start))
	return b
}

// longestComment is what nft takes; it would not list a longer one.
const longestComment = 128

// userComment is the user data by which nft shows a comment: typ is 0 for
// tables, chains, rules and elements.
func userComment(typ byte, comment string) []byte {
	comment = comment[:min(len(comment), longestComment)]
	data := append([]byte{typ, byte(len(comment) + 1)}, comment...)
	return append(data, 0)
}

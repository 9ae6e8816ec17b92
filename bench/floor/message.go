package floor

import "encoding/binary"

// message is a sequence of netlink messages that one system call sends.
type message struct {
	b     []byte
	start int // offset of the current message
	want  int // expected acknowledgements
}

const (
	attrLen = 4 // size of an attribute's header

	flagRequest = 0x1
	flagAck     = 0x4
	flagEcho    = 0x8
	flagExcl    = 0x200
	flagCreate  = 0x400
	flagAppend  = 0x800

	nested = 0x8000 // the attribute holds attributes
)

// begin starts a message with the header of its family.
func (m *message) begin(typ, flags uint16, family []byte) {
	m.start = len(m.b)
	if flags&flagAck != 0 {
		m.want++
	}
	m.b = append(m.b, 0, 0, 0, 0) // length, filled in by end
	m.b = binary.NativeEndian.AppendUint16(m.b, typ)
	m.b = binary.NativeEndian.AppendUint16(m.b, flags|flagRequest)
	m.b = append(m.b, 0, 0, 0, 0, 0, 0, 0, 0) // sequence and port, unused
	m.b = append(m.b, family...)
}

func (m *message) end() {
	binary.NativeEndian.PutUint32(m.b[m.start:], uint32(len(m.b)-m.start))
}

// attr writes an attribute and its padding.
func (m *message) attr(typ uint16, value []byte) {
	m.b = binary.NativeEndian.AppendUint16(m.b, uint16(attrLen+len(value)))
	m.b = binary.NativeEndian.AppendUint16(m.b, typ)
	m.b = append(m.b, value...)
	for len(m.b)%4 != 0 {
		m.b = append(m.b, 0)
	}
}

func (m *message) text(typ uint16, s string) { m.attr(typ, append([]byte(s), 0)) }

func (m *message) uint32(typ uint16, v uint32) {
	m.attr(typ, binary.NativeEndian.AppendUint32(nil, v))
}

// big32 writes a number in the byte order of networks, as nftables has it.
func (m *message) big32(typ uint16, v uint32) { m.attr(typ, binary.BigEndian.AppendUint32(nil, v)) }

// nest writes an attribute that contains the attributes of fill.
func (m *message) nest(typ uint16, fill func()) {
	at := len(m.b)
	m.b = binary.NativeEndian.AppendUint16(m.b, 0)
	m.b = binary.NativeEndian.AppendUint16(m.b, typ|nested)
	fill()
	binary.NativeEndian.PutUint16(m.b[at:], uint16(len(m.b)-at))
}

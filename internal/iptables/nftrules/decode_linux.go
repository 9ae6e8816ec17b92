package nftrules

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/nft"
)

// decode reads the expressions of a rule in the kernel, in the forms of all versions
// that the documentation of the package lists.
func decode(family uint8, e nft.Exprs) (rule, error) {
	d := decoder{family: family, rest: e.List()}
	for len(d.rest) > 0 {
		one := d.rest[0]
		if !d.expression() {
			return rule{}, fmt.Errorf("%w: expression %s", ErrUnknown, one.Name)
		}
	}
	if !d.ended {
		return rule{}, fmt.Errorf("%w: no verdict", ErrUnknown)
	}
	if !d.resolvePorts() {
		return rule{}, fmt.Errorf("%w: a port of no protocol", ErrUnknown)
	}
	return d.rule, nil
}

// Text returns a rule of the kernel as text to compare. It is the same for rules that
// iptables takes for the same, whichever version made them.
func Text(family uint8, e nft.Exprs) string {
	r, err := decode(family, e)
	if err != nil {
		return e.String()
	}
	return r.encode(family).String()
}

type decoder struct {
	rule
	family uint8
	rest   []nft.Expr
	ended  bool // by a verdict or a target
}

// expression reads one expression, or those of one comparison. It reports whether they
// are known.
func (d *decoder) expression() bool {
	x := d.rest[0]
	if d.ended {
		return false
	}
	switch x.Name {
	case "payload", "meta":
		c, ok := d.comparison()
		return ok && d.compared(c)
	case "match":
		m, ok := extensionOf(x)
		d.matches = append(d.matches, m)
		d.rest = d.rest[1:]
		return ok
	case "target":
		target, ok := extensionOf(x)
		d.target, d.ended, d.rest = target, true, d.rest[1:]
		return ok
	case "immediate":
		code, ok := x.Verdict()
		d.verdict, d.ended, d.rest = verdict{code, x.Jump()}, true, d.rest[1:]
		return ok && (code == verdictJump) == (x.Jump() != "")
	}
	return false
}

// extensionOf reads a match or target. An unknown revision of a known one may be the
// same as a known one.
func extensionOf(x nft.Expr) (extension, bool) {
	name, info := x.Extension()
	revision, known := revisionOf(name)
	e := extension{name, x.Revision(), string(info)}
	return e, name != "" && (!known || revision == e.revision)
}

// comparison is bytes of a packet, or a fact about it, that a rule compares.
type comparison struct {
	load        nft.Expr
	mask, value []byte // mask is nil without one
	not         bool
}

// comparison reads an expression that loads, with a mask or without, and the one that
// compares.
func (d *decoder) comparison() (c comparison, ok bool) {
	c.load, d.rest = d.rest[0], d.rest[1:]
	register := c.load.Number(unix.NFTA_PAYLOAD_DREG)
	if c.load.Name == "meta" {
		register = c.load.Number(unix.NFTA_META_DREG)
	}
	if len(d.rest) > 0 && d.rest[0].Name == "bitwise" {
		x := d.rest[0]
		d.rest = d.rest[1:]
		if c.mask = x.Mask(); c.mask == nil || !x.OnlyMasks() || x.Number(unix.NFTA_BITWISE_SREG) != register {
			return c, false
		}
		register = x.Number(unix.NFTA_BITWISE_DREG)
	}
	if len(d.rest) == 0 || d.rest[0].Name != "cmp" || d.rest[0].Number(unix.NFTA_CMP_SREG) != register {
		return c, false
	}
	x := d.rest[0]
	d.rest = d.rest[1:]
	c.value, c.not = x.Value(), x.Number(unix.NFTA_CMP_OP) == unix.NFT_CMP_NEQ
	return c, c.not || x.Number(unix.NFTA_CMP_OP) == unix.NFT_CMP_EQ
}

// compared adds a comparison to the rule.
func (d *decoder) compared(c comparison) bool {
	if c.load.Name == "meta" {
		return d.comparedMeta(c)
	}
	base, offset, size := c.load.Number(unix.NFTA_PAYLOAD_BASE), c.load.Number(unix.NFTA_PAYLOAD_OFFSET), c.load.Number(unix.NFTA_PAYLOAD_LEN)
	if int(size) != len(c.value) {
		return false
	}
	const protocolV4, destinationPort = 9, 2 // offsets in the headers
	switch {
	case base == unix.NFT_PAYLOAD_TRANSPORT_HEADER && offset == destinationPort && size == 2 && c.mask == nil && !c.not:
		d.matches = append(d.matches, extension{info: string(c.value)}) // see resolvePorts
		return true
	case base != unix.NFT_PAYLOAD_NETWORK_HEADER:
		return false
	case d.family == nft.FamilyIPv4 && offset == protocolV4 && size == 1:
		return d.comparedProtocol(c)
	case d.family == nft.FamilyIPv4 && offset == srcV4, d.family == nft.FamilyIPv6 && offset == srcV6:
		return d.comparedNetwork(&d.src, c)
	case d.family == nft.FamilyIPv4 && offset == dstV4, d.family == nft.FamilyIPv6 && offset == dstV6:
		return d.comparedNetwork(&d.dst, c)
	}
	return false
}

func (d *decoder) comparedMeta(c comparison) bool {
	switch c.load.Number(unix.NFTA_META_KEY) {
	case unix.NFT_META_IIFNAME:
		return comparedDevice(&d.in, c)
	case unix.NFT_META_OIFNAME:
		return comparedDevice(&d.out, c)
	case unix.NFT_META_L4PROTO:
		return d.comparedProtocol(c)
	case unix.NFT_META_MARK:
		mask := c.mask
		if mask == nil {
			mask = []byte{0xff, 0xff, 0xff, 0xff}
		}
		if c.not || len(c.value) != 4 || len(mask) != 4 {
			return false
		}
		d.matches = append(d.matches, markMatch(binary.NativeEndian.Uint32(c.value), binary.NativeEndian.Uint32(mask)))
		return true
	}
	return false
}

func (d *decoder) comparedProtocol(c comparison) bool {
	if c.mask != nil || c.not || len(c.value) != 1 || d.protocol != 0 {
		return false
	}
	d.protocol = c.value[0]
	return true
}

// comparedDevice reads the name of an interface. Without a zero byte at its end it is
// one with a "+".
func comparedDevice(to *device, c comparison) bool {
	name, after, found := bytes.Cut(c.value, []byte{0})
	if c.mask != nil || !found || len(name) == 0 || len(bytes.Trim(after, "\x00")) > 0 || *to != (device{}) {
		return false
	}
	*to = device{string(name), c.not}
	return true
}

// comparedNetwork reads a prefix: as few bytes as it has, or a whole address and a mask.
func (d *decoder) comparedNetwork(to *network, c comparison) bool {
	size := 4
	if d.family == nft.FamilyIPv6 {
		size = 16
	}
	bits := 8 * len(c.value)
	if c.mask != nil {
		var ok bool
		if bits, ok = maskBits(c.mask); !ok || len(c.mask) != size {
			return false
		}
	}
	if bits == 0 || len(c.value) > size || c.mask != nil && len(c.value) != size || to.IsValid() {
		return false
	}
	addr, _ := netip.AddrFromSlice(append(bytes.Clone(c.value), make([]byte, size-len(c.value))...))
	p := netip.PrefixFrom(addr, bits)
	if p != p.Masked() {
		return false // no packet has it
	}
	*to = network{p, c.not}
	return true
}

// maskBits returns the length of a prefix. ok is false for a mask with gaps.
func maskBits(mask []byte) (bits int, ok bool) {
	for bits < 8*len(mask) && mask[bits/8]&(0x80>>(bits%8)) != 0 {
		bits++
	}
	return bits, bytes.Equal(mask, nft.PrefixMask(bits, len(mask)))
}

// resolvePorts turns comparisons with a port into the match of their protocol, which
// can follow them.
func (d *decoder) resolvePorts() bool {
	for i, m := range d.matches {
		if m.name != "" {
			continue
		}
		match, ok := portMatch(d.protocol, binary.BigEndian.Uint16([]byte(m.info)))
		if !ok {
			return false
		}
		d.matches[i] = match
	}
	return true
}

package native

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/nft"
)

// The tables of this module's own. Their sets are described in the documentation of the
// package. A name is that of one set, or one chain, of both tables.
var (
	table       = nft.Table{Family: nft.FamilyInet, Name: "embedcni"}
	bridgeTable = nft.Table{Family: nft.FamilyBridge, Name: "embedcni"}
)

// The sets of the table for bridges.
const (
	portsSet   = "ports"
	sendersSet = "senders"
)

func tables() []nft.Table { return []nft.Table{table, bridgeTable} }

// tableOf returns the table of a set.
func tableOf(set string) nft.Table {
	if set == portsSet || set == sendersSet {
		return bridgeTable
	}
	return table
}

// field is a part of an element's key or value.
type field uint32

// The numbers are those by which nft knows the types, which it writes into a
// set so that it can list it.
const (
	fieldIPv4     field = 7
	fieldIPv6     field = 8
	fieldMAC      field = 9
	fieldProtocol field = 12
	fieldPort     field = 13
	fieldLink     field = 41
)

// size is the number of bytes, in the registers of four bytes that a field
// fills.
func (f field) size() int {
	switch f {
	case fieldIPv6, fieldLink:
		return 16
	case fieldMAC:
		return 8
	}
	return 4
}

// text reads the field as nft would print it.
func (f field) text(b []byte) string {
	switch f {
	case fieldIPv4, fieldIPv6:
		a, _ := netip.AddrFromSlice(b)
		return a.String()
	case fieldMAC:
		return net.HardwareAddr(b[:6]).String()
	case fieldProtocol:
		return protocolName(b[0])
	case fieldPort:
		return strconv.Itoa(int(binary.BigEndian.Uint16(b)))
	}
	name, _, _ := bytes.Cut(b, []byte{0})
	return strconv.Quote(string(name))
}

// fields are a key or value: a concatenation, in nft's words.
type fields []field

// size is the number of bytes.
func (fs fields) size() int {
	n := 0
	for _, f := range fs {
		n += f.size()
	}
	return n
}

// typ is the number of the concatenation.
func (fs fields) typ() uint32 {
	n := uint32(0)
	for _, f := range fs {
		n = n<<6 | uint32(f)
	}
	return n
}

func (fs fields) text(b []byte) string {
	if len(b) != fs.size() {
		return fmt.Sprintf("%x", b)
	}
	var words []string
	for _, f := range fs {
		words = append(words, f.text(b[:f.size()]))
		b = b[f.size():]
	}
	return strings.Join(words, " . ")
}

// setKind describes the elements of a set.
type setKind struct {
	key, value fields // a set that is no map has no value
}

// The sets of which there is one for each length of a prefix that is in use:
// "subnets4_24".
const (
	subnetsPrefix = "subnets"
	hairpinPrefix = "hairpin"
)

// fixedSets are those that the table always has, in the order in which they are made.
func fixedSets(of nft.Table) []string {
	if of == bridgeTable {
		return []string{portsSet, sendersSet}
	}
	return []string{
		"containers4", "containers6", "hostports4", "hostports6", "hostips4", "hostips6",
		"bridges", "isolated", "same_bridge",
	}
}

// kindOf returns the kind of the set of that name. It is false for a name that
// is none of this module's.
func kindOf(set string) (setKind, bool) {
	addr := fieldIPv4
	if strings.HasSuffix(set, "6") {
		addr = fieldIPv6
	}
	switch set {
	case "containers4", "containers6":
		return setKind{key: fields{addr}}, true
	case "hostports4", "hostports6":
		return setKind{fields{fieldProtocol, fieldPort}, fields{addr, fieldPort}}, true
	case "hostips4", "hostips6":
		return setKind{fields{fieldProtocol, addr, fieldPort}, fields{addr, fieldPort}}, true
	case "bridges", portsSet:
		return setKind{key: fields{fieldLink}}, true
	case "isolated", "same_bridge":
		return setKind{key: fields{fieldLink, fieldLink}}, true
	case sendersSet:
		return setKind{key: fields{fieldLink, fieldMAC}}, true
	}
	_, v6, bits, ok := perLength(set)
	switch {
	case !ok:
		return setKind{}, false
	case v6:
		addr = fieldIPv6
	default:
		addr = fieldIPv4
	}
	if bits == 0 {
		return setKind{key: fields{addr}}, true
	}
	return setKind{key: fields{addr, addr}}, true
}

// perLength reads the name of a set that is for one length of prefix.
func perLength(set string) (prefix string, v6 bool, bits int, ok bool) {
	for _, prefix := range []string{subnetsPrefix, hairpinPrefix} {
		rest, found := strings.CutPrefix(set, prefix)
		family, number, cut := strings.Cut(rest, "_")
		bits, err := strconv.Atoi(number)
		if !found || !cut || err != nil || strconv.Itoa(bits) != number || bits < 0 {
			continue
		}
		if family == "4" && bits <= 32 || family == "6" && bits <= 128 {
			return prefix, family == "6", bits, true
		}
	}
	return "", false, 0, false
}

// perFamily is the name of a set for addresses like a.
func perFamily(set string, a netip.Addr) string {
	if a.Is4() {
		return set + "4"
	}
	return set + "6"
}

// element is one of a set or map of the native table. Its comment is the owner's;
// an element of a bridge has none.
type element = nft.Element

// elementText prints an element as in a command of nft's.
//
//	element inet embedcni hostports4 { tcp . 8080 comment "6f8b…" : 10.1.0.2 . 80 }
type elementText element

func (e elementText) String() string {
	kind, _ := kindOf(e.Set)
	s := fmt.Sprintf("element %v %s { %s", tableOf(e.Set), e.Set, kind.key.text([]byte(e.Key)))
	if e.Comment != "" {
		s += fmt.Sprintf(` comment "%s"`, e.Comment)
	}
	if e.Value != "" {
		s += " : " + kind.value.text([]byte(e.Value))
	}
	return s + " }"
}

// addElement returns the message that adds an element, if its key is free. What
// is per bridge and exists already stays.
func addElement(e element) nft.Message {
	return nft.NewElement(tableOf(e.Set), e, e.Comment != "").About(elementText(e))
}

// deleteElement returns the message that deletes an element.
func deleteElement(e element) nft.Message {
	return nft.DeleteElement(tableOf(e.Set), e).About(elementText(e))
}

func compareElements(e, f element) int {
	return cmp.Or(cmp.Compare(e.Set, f.Set), cmp.Compare(e.Key, f.Key), cmp.Compare(e.Value, f.Value), cmp.Compare(e.Comment, f.Comment))
}

// isPort reports whether the element is a port of the host, which belongs to the
// first container that asks for it.
func isPort(e element) bool { return e.Value != "" }

// elementKey identifies an element.
type elementKey struct{ set, key string }

func keyOf(e element) elementKey { return elementKey{e.Set, e.Key} }

// byKey returns the elements by their keys.
func byKey(all []element) map[elementKey]element {
	m := make(map[elementKey]element, len(all))
	for _, e := range all {
		m[keyOf(e)] = e
	}
	return m
}

func protocolName(number byte) string {
	for _, name := range []string{"tcp", "udp", "sctp"} {
		if n, _ := fwrules.ProtocolNumber(name); n == number {
			return name
		}
	}
	return strconv.Itoa(int(number))
}

// The fields of a key, in bytes.
func keyProtocol(number byte) string { return string([]byte{number, 0, 0, 0}) }
func keyPort(port uint16) string     { return string([]byte{byte(port >> 8), byte(port), 0, 0}) }
func keyAddr(a netip.Addr) string    { return string(a.AsSlice()) }

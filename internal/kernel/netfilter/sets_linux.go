package netfilter

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/embedcni/cni/internal/kernel/nft"
)

// The tables of this module's own have the rules of attachments as elements of sets and maps.
// A packet and a change cost the same for any number of containers.
//
// An address belongs to one attachment at a time: an ADD takes over the elements that
// another attachment left with the address, and the late DEL of that attachment leaves them
// alone. If the other still lives, on a network of its own, the element does the same for
// both meanwhile; [DisplacedFact] notes that it is to be given back. A port of the host belongs
// to the first container that asks for it. The ADD of another container fails with
// [ErrHostPortTaken]; one of the same container leaves the port as it is, see [Siblings].
//
// The first container creates the table, and it stays. It may be deleted when no
// container needs it. "nft list table inet embedcni" prints it in a form that
// "nft -f" loads again.
//
//	set containers4, containers6       addresses whose packets are masqueraded, except …
//	set subnets4_24, subnets6_64, …    … within the container's own subnet: address . first address of the
//	                                   subnet, a set for each length of prefix in use
//	map hostports4, hostports6         protocol . port : address . port of the container
//	map hostips4, hostips6             the same for one address of the host; these go first
//	set hairpin4_24, hairpin4_8, …     address . first address of a network whose packets to a forwarded port
//	                                   are masqueraded: the container's subnet, 127.0.0.0/8, or all (_0)
//	set bridges, isolated, same_bridge interfaces with an ingress policy; these are per bridge, and stay
//
// The first container whose frames are checked creates the table for bridges:
//
//	set ports                          interfaces on a bridge that take frames only from …
//	set senders                        … these: interface . MAC address
//
// Every other element has its attachment as the comment: a hash of it, network,
// interface and container ID. The comment alone decides whose an element is.
// There are a few rules, each with a comment, in the chains prerouting and output
// (host ports), postrouting (masquerading) and forward (ingress policies). No rule
// belongs to a container. Empty sets stay, and so do rules for a length of prefix
// that is no longer in use.
//
// A container that asks for its own forwarded port, from within one subnet, needs
// hairpinMode of the plugin bridge: the bridge must send packets back by the port
// that they came from.
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

// set is a set, or a map if its elements have values.
type set struct {
	name       string
	key, value fields
}

// The sets of which there is one for each length of a prefix that is in use:
// "subnets4_24".
const (
	subnetsPrefix = "subnets"
	hairpinPrefix = "hairpin"
)

// fixedSets are those that a table always has, in the order in which they are made.
func fixedSets(of nft.Table) []set {
	if of == bridgeTable {
		return []set{{portsSet, fields{fieldLink}, nil}, {sendersSet, fields{fieldLink, fieldMAC}, nil}}
	}
	return []set{
		{"containers4", fields{fieldIPv4}, nil},
		{"containers6", fields{fieldIPv6}, nil},
		{"hostports4", fields{fieldProtocol, fieldPort}, fields{fieldIPv4, fieldPort}},
		{"hostports6", fields{fieldProtocol, fieldPort}, fields{fieldIPv6, fieldPort}},
		{"hostips4", fields{fieldProtocol, fieldIPv4, fieldPort}, fields{fieldIPv4, fieldPort}},
		{"hostips6", fields{fieldProtocol, fieldIPv6, fieldPort}, fields{fieldIPv6, fieldPort}},
		{"bridges", fields{fieldLink}, nil},
		{"isolated", fields{fieldLink, fieldLink}, nil},
		{"same_bridge", fields{fieldLink, fieldLink}, nil},
	}
}

// setOf returns the set of that name. It is false for a name that is none of this
// module's.
func setOf(name string) (s set, ok bool) {
	fixed := fixedSets(tableOf(name))
	if i := slices.IndexFunc(fixed, func(s set) bool { return s.name == name }); i >= 0 {
		return fixed[i], true
	}
	_, v6, bits, ok := perLength(name)
	s = set{name: name, key: fields{fieldIPv4, fieldIPv4}}
	if v6 {
		s.key = fields{fieldIPv6, fieldIPv6}
	}
	if bits == 0 {
		s.key = s.key[:1]
	}
	return s, ok
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

// element is one of a set or map of this module's tables. Its comment is the owner's;
// an element of a bridge has none.
type element = nft.Element

// elementText prints an element as in a command of nft's.
//
//	element inet embedcni hostports4 { tcp . 8080 comment "6f8b…" : 10.1.0.2 . 80 }
type elementText element

func (e elementText) String() string {
	in, _ := setOf(e.Set)
	s := fmt.Sprintf("element %v %s { %s", tableOf(e.Set), e.Set, in.key.text([]byte(e.Key)))
	if e.Comment != "" {
		s += fmt.Sprintf(` comment "%s"`, e.Comment)
	}
	if e.Value != "" {
		s += " : " + in.value.text([]byte(e.Value))
	}
	return s + " }"
}

// addElement returns the message that adds an element, if its key is free. What
// is per bridge and exists already stays.
func addElement(e element) nft.Message {
	return nft.NewElement(tableOf(e.Set), e, e.Comment != "").About(elementText(e))
}

func compareElements(e, f element) int {
	return cmp.Or(cmp.Compare(e.Set, f.Set), cmp.Compare(e.Key, f.Key), cmp.Compare(e.Value, f.Value), cmp.Compare(e.Comment, f.Comment))
}

// isPort reports whether the element is a port of the host, which belongs to the
// first container that asks for it.
func isPort(e element) bool { return e.Value != "" }

// keyOf returns what identifies an element.
func keyOf(e element) element { return element{Set: e.Set, Key: e.Key} }

func protocolName(number byte) string {
	for _, name := range []string{"tcp", "udp", "sctp"} {
		if n, _ := ProtocolNumber(name); n == number {
			return name
		}
	}
	return strconv.Itoa(int(number))
}

// The fields of a key, in bytes.
func keyProtocol(number byte) string { return string([]byte{number, 0, 0, 0}) }
func keyPort(port uint16) string     { return string([]byte{byte(port >> 8), byte(port), 0, 0}) }
func keyAddr(a netip.Addr) string    { return string(a.AsSlice()) }

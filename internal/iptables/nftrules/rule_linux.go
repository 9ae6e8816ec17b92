package nftrules

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/nft"
)

// ErrUnknown means that a rule has words or expressions that this package does not
// know. Only iptables itself can write it, or compare it with another.
var ErrUnknown = errors.New("a rule of a form that only iptables knows")

// rule is a rule of iptables, without its chain and its counters.
type rule struct {
	in, out  device
	src, dst network
	protocol byte // 0: all
	matches  []extension
	target   extension // if it has a name; else verdict decides
	verdict  verdict
}

// device is "-i" or "-o". Its zero value compares nothing.
type device struct {
	name string
	not  bool
}

// network is "-s" or "-d". Its zero value compares nothing.
type network struct {
	netip.Prefix
	not bool
}

// extension is a match or a target, with its struct in the kernel's form.
type extension struct {
	name     string
	revision uint32
	info     string
}

// verdict is the end of a rule without a target.
type verdict struct {
	code  int32
	chain string // of a jump
}

// ruleKey is the same for two rules that do the same in the same order, as iptables
// compares them for "-C" and "-D".
type ruleKey struct {
	in, out  device
	src, dst network
	protocol byte
	matches  string
	target   extension
	verdict  verdict
}

func (r rule) key() ruleKey {
	var matches []byte
	for _, m := range r.matches {
		matches = fmt.Appendf(matches, "%q %d %q ", m.name, m.revision, m.info)
	}
	return ruleKey{r.in, r.out, r.src, r.dst, r.protocol, string(matches), r.target, r.verdict}
}

// The verdicts of linux/netfilter.h and linux/netfilter/nf_tables.h.
const (
	verdictDrop   = 0
	verdictAccept = 1
	verdictReturn = int32(unix.NFT_RETURN)
	verdictJump   = int32(unix.NFT_JUMP)
)

// The revisions of the extensions that this package writes. A rule with another
// revision of one of them may do the same.
var revisions = [...]struct {
	name     string
	revision uint32
}{
	{"comment", 0}, {"conntrack", 3}, {"addrtype", 1}, {"multiport", 1}, {"mark", 1}, {"tcp", 0}, {"udp", 0}, {"sctp", 0},
	{"MARK", 2}, {"MASQUERADE", 0}, {"DNAT", 2},
}

func revisionOf(name string) (revision uint32, known bool) {
	for _, r := range revisions {
		if r.name == name {
			return r.revision, true
		}
	}
	return 0, false
}

// extend returns an extension of the revision that this package writes. As XT_ALIGN
// does, it fills up the struct to the alignment of C's largest integers.
func extend(name string, info []byte) extension {
	align := 8
	if runtime.GOARCH == "386" {
		align = 4
	}
	for len(info)%align != 0 {
		info = append(info, 0)
	}
	revision, _ := revisionOf(name)
	return extension{name, revision, string(info)}
}

// mostComment is the size of struct xt_comment_info, which ends with a zero byte.
const mostComment = 256

func commentMatch(text string) extension {
	return extend("comment", append([]byte(text), make([]byte, mostComment-len(text))...))
}

// trackedMatch is "-m conntrack --ctstate RELATED,ESTABLISHED": struct
// xt_conntrack_mtinfo3, of which states to compare are set.
func trackedMatch() extension {
	const size, flags, states = 168, 146, 150
	info := make([]byte, size)
	binary.NativeEndian.PutUint16(info[flags:], 1)          // XT_CONNTRACK_STATE
	binary.NativeEndian.PutUint16(info[states:], 1<<1|1<<2) // IP_CT_ESTABLISHED, IP_CT_RELATED
	return extend("conntrack", info)
}

// toHostMatch is "-m addrtype --dst-type LOCAL": struct xt_addrtype_info_v1.
func toHostMatch() extension {
	info := binary.NativeEndian.AppendUint16(nil, 0) // source
	info = binary.NativeEndian.AppendUint16(info, 1<<unix.RTN_LOCAL)
	return extend("addrtype", binary.NativeEndian.AppendUint32(info, 0))
}

// portsMatch is "-m multiport --dports": struct xt_multiport_v1.
func portsMatch(ports []uint16) extension {
	const most, destination = mostPorts, 1 // XT_MULTI_PORTS, XT_MULTIPORT_DESTINATION
	info := []byte{destination, byte(len(ports))}
	for _, p := range ports {
		info = binary.NativeEndian.AppendUint16(info, p)
	}
	info = append(info, make([]byte, 2*(most-len(ports)))...)
	return extend("multiport", append(info, make([]byte, most+1)...)) // pflags, invert
}

// mostPorts is the number of ports that a multiport match takes.
const mostPorts = 15

// markMatch is "-m mark --mark": struct xt_mark_mtinfo1.
func markMatch(mark, mask uint32) extension {
	return extend("mark", append(slices.Concat(nft.Native32(mark), nft.Native32(mask)), 0))
}

// portMatch is "--dport" of a protocol: struct xt_tcp, xt_udp or xt_sctp_info. ok is
// false for a protocol without ports.
func portMatch(protocol byte, port uint16) (x extension, ok bool) {
	ports := func(from, to uint16) []byte {
		return binary.NativeEndian.AppendUint16(binary.NativeEndian.AppendUint16(nil, from), to)
	}
	all, one := ports(0, 0xffff), ports(port, port)
	switch protocol {
	case unix.IPPROTO_TCP:
		return extend("tcp", slices.Concat(all, one, make([]byte, 4))), true // option, flg_mask, flg_cmp, invflags
	case unix.IPPROTO_UDP:
		return extend("udp", slices.Concat(all, one, make([]byte, 1))), true // invflags
	case unix.IPPROTO_SCTP:
		return sctpMatch(one), true
	}
	return extension{}, false
}

// sctpMatch is struct xt_sctp_info: the tool leaves the source ports zero, and compares
// only those whose flag is set.
func sctpMatch(port []byte) extension {
	const chunks = 256                                                                  // the bytes of chunkmap
	const destination = 1 << 1                                                          // XT_SCTP_DEST_PORTS
	none := []byte{0xff, 0, 0}                                                          // struct xt_sctp_flag_info of no chunk
	info := slices.Concat(port, make([]byte, 4), make([]byte, chunks), make([]byte, 4)) // chunk_match_type
	info = append(info, slices.Repeat(none, 4)...)
	info = append(info, nft.Native32(0)...) // flag_count
	info = append(info, nft.Native32(destination)...)
	return extend("sctp", append(info, nft.Native32(0)...)) // invflags
}

// markTarget is "-j MARK --set-xmark": struct xt_mark_tginfo2.
func markTarget(mark, mask uint32) extension {
	return extend("MARK", slices.Concat(nft.Native32(mark), nft.Native32(mask)))
}

// masqueradeTarget is "-j MASQUERADE": struct nf_nat_ipv4_multi_range_compat with one
// range, or nf_nat_range.
func masqueradeTarget(family uint8) extension {
	if family == nft.FamilyIPv4 {
		return extend("MASQUERADE", append(nft.Native32(1), make([]byte, 16)...))
	}
	return extend("MASQUERADE", make([]byte, 4+2*16+2*2))
}

// dnatTarget is "-j DNAT --to-destination": struct nf_nat_range2.
func dnatTarget(to netip.AddrPort) extension {
	const flags = 1<<0 | 1<<1 // NF_NAT_RANGE_MAP_IPS, NF_NAT_RANGE_PROTO_SPECIFIED
	addr := make([]byte, 16)
	copy(addr, to.Addr().AsSlice())
	port := binary.BigEndian.AppendUint16(nil, to.Port())
	return extend("DNAT", slices.Concat(nft.Native32(flags), addr, addr, port, port, make([]byte, 2))) // base_proto
}

package netfilter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/nft"
)

// acceptRule is a rule that accepts packets of a subnet.
type acceptRule struct {
	comment string
	subnet  netip.Prefix
	answers bool // packets to the subnet, of connections that are there; else those from it
}

// accepts are the rules of a namespace that accept the packets of one program's networks. It
// owns their name, by which it leaves those of other programs alone.
type accepts struct {
	sockets nft.Sockets
	name    string // begins the comments: the directory of the records by device and inode
}

// accepts returns the rules of this program. The directory is zero in their name if there is
// none, and beside an error.
func (fw *Firewalls) accepts() (accepts, error) {
	var records unix.Stat_t
	err := unix.Stat(fw.Records, &records)
	own := accepts{fw.sockets, fmt.Sprintf("embedcni %x-%x", records.Dev, records.Ino)}
	if err == nil || errors.Is(err, unix.ENOENT) {
		return own, nil
	}
	return own, fmt.Errorf("the rules of a network are named after the directory of the records: %s: %w", fw.Records, err)
}

// rules returns the rules for the subnets.
func (a accepts) rules(subnets ...netip.Prefix) (all []acceptRule) {
	for _, subnet := range subnets {
		all = append(all,
			acceptRule{fmt.Sprintf("%s: to %v", a.name, subnet), subnet, true},
			acceptRule{fmt.Sprintf("%s: from %v", a.name, subnet), subnet, false})
	}
	return all
}

// words returns the rule as arguments of iptables.
func (r acceptRule) words() []string {
	words := []string{"-s", r.subnet.String()}
	if r.answers {
		words = []string{"-d", r.subnet.String(), "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED"}
	}
	return append(words, "-m", "comment", "--comment", r.comment, "-j", "ACCEPT")
}

// String returns the rule as iptables-save prints it: only the comment needs quotes.
func (r acceptRule) String() string {
	words := r.words()
	words[len(words)-3] = strconv.Quote(r.comment)
	return strings.Join(words, " ")
}

// exprs returns the rule as the nf_tables variant of iptables has it, with the structs of
// linux/netfilter/xt_conntrack.h and xt_comment.h.
func (r acceptRule) exprs() nft.Exprs {
	family := nft.FamilyOf(r.subnet.Addr())
	e := nft.Exprs(nil).Source(family, nft.Reg(0))
	if r.answers {
		e = nft.Exprs(nil).Destination(family, nft.Reg(0))
	}
	addr := r.subnet.Addr().AsSlice()
	if !r.subnet.IsSingleIP() {
		e = e.Mask(nft.Reg(0), nft.PrefixMask(r.subnet.Bits(), len(addr)))
	}
	e = e.Equal(addr)
	if r.answers {
		const size, flags, states = 168, 146, 150 // of struct xt_conntrack_mtinfo3
		info := make([]byte, size)
		binary.NativeEndian.PutUint16(info[flags:], 1)          // XT_CONNTRACK_STATE
		binary.NativeEndian.PutUint16(info[states:], 1<<1|1<<2) // IP_CT_ESTABLISHED, IP_CT_RELATED
		e = e.Match("conntrack", 3, info)
	}
	const commentSize = 256 // of struct xt_comment_info
	comment := make([]byte, commentSize)
	copy(comment[:commentSize-1], r.comment)
	return e.Match("comment", 0, comment).Counter().Accept()
}

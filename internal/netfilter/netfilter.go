// Package netfilter adds, checks, finds and deletes the firewall rules of
// attachments. It also finds the rules that the reference plugins (v1.9.1) leave when
// a DEL fails, is killed, or runs without the container's namespace.
//
//	fw := netfilter.Open(nil, netfilter.Options{})
//	plan, err := netfilter.Find(ctx, fw, target)
//	fmt.Print(plan)          // a dry run
//	err = plan.Apply(ctx)
//
// A rule belongs to an attachment if its chain, comment or address is equal to the
// one that the plugins compute. No rule's text is searched for a name:
//
//	bridge, ptp: ipMasq             chain CNI-<hash of network and id> in nat, and every jump to it
//	  with nftables                 rules of inet cni_plugins_masquerade with the computed comment
//	bridge: macspoofchk             chains cni-br-iface-<id>-<interface>[-mac] in bridge nat, every
//	                                jump to them, and rules with the computed comment
//	portmap                         chains CNI-DN-<hash> and, from before v0.7, CNI-SN-<hash> in nat, and
//	                                every jump to them
//	  with nftables                 rules of ip and ip6 cni_hostport with the container's id as comment
//	firewall                        the two rules of CNI-FORWARD for each of [fwrules.Target.Addresses]
//	  with an ingress policy        the rules of CNI-ISOLATION-STAGE-1 and -2 for [fwrules.Target.LastOnBridge]
//	this module's own plugins       elements of inet embedcni with the computed comment, and those of
//	                                [fwrules.Target.LastOnBridge]; see [fwrules.Native]
//
// Rules that containers share stay: the chains CNI-HOSTPORT-*, CNI-FORWARD,
// CNI-ADMIN and CNI-ISOLATION-*, their fixed rules, the jumps to them, and the
// nftables tables with their base chains, sets and maps.
//
// There are three forms of the rules, each in a package of its own, which is the
// place to begin reading: native, this module's own table; nftform and iptform, the
// reference plugins' rules in nftables and iptables. [Firewalls] has them behind one
// interface. In each form one function finds the rules of an attachment, for DEL,
// which describes the rules of one plugin, and for the sweep, which describes all.
//
// Find looks at both variants of iptables, nf_tables and legacy, for both
// families. It starts iptables-save and iptables-restore (1.6.2 or later), which
// takes some milliseconds, only for a variant that has a chain in question, and
// reads nftables over netlink. If nothing of an attachment is left, that takes
// about thirty netlink messages.
//
// # Cost
//
// Attaching takes one transaction of some ten elements: 20 µs, with 10 as with
// 10,000 containers, once the socket is open. Deleting them takes two messages
// more and 40 µs. A transaction does not wait for the kernel's grace period;
// closing a socket after a deletion does, for about ten milliseconds, in which
// no one can change rules. So a runtime keeps sockets open, see [Options].
//
// In the form of the reference plugins both grow with the number of containers:
// the kernel copies a chain for each rule that is added, and a rule is found by
// listing its chain.
//
// It needs CAP_NET_ADMIN over the network namespace. Off Linux it fails with
// [ErrNotSupported].
package netfilter

import (
	"errors"
	"fmt"
	"strings"

	"github.com/embedcni/cni/internal/netfilter/fwrules"
)

// ErrNotSupported is returned off Linux. It is an [errors.ErrUnsupported].
var ErrNotSupported = fmt.Errorf("packet filters need Linux: %w", errors.ErrUnsupported)

// Plan is a list of deletions, in order. The zero Plan is empty.
type Plan struct{ found []fwrules.Found }

// Empty reports whether there is nothing to delete.
func (p Plan) Empty() bool { return len(p.found) == 0 }

// String returns a line for each step: the command that would do the same.
// Nothing runs these commands, and their arguments are not quoted for a shell.
//
//	iptables-nft -t nat -D POSTROUTING -s 10.1.0.2/32 -m comment --comment "name: \"podnet\" id: \"c1\"" -j CNI-6f8b…
//	iptables-nft -t nat -F CNI-6f8b…
//	iptables-nft -t nat -X CNI-6f8b…
//	nft delete rule ip cni_hostport hostports handle 7 # c1
func (p Plan) String() string {
	var b strings.Builder
	for _, f := range p.found {
		for _, line := range f.Lines() {
			b.WriteString(line)
			b.WriteByte('\n')
		}
	}
	return b.String()
}

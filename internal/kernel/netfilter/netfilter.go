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
//	firewall                        the two rules of CNI-FORWARD for each of [Target.Addresses]
//	this module's own plugins       elements of inet and bridge embedcni with the computed comment, and the two rules of
//	                                CNI-FORWARD for each of [Target.Subnets] that nobody needs any more
//
// Rules that containers share stay: the chains CNI-HOSTPORT-*, CNI-FORWARD,
// CNI-ADMIN and CNI-ISOLATION-*, their fixed rules, the jumps to them, and the
// nftables tables with their base chains, sets and maps.
//
// Rules are made in one form: elements of this module's own tables, but for the accept of a
// network's packets, which is in iptables. A rule is missing only if it has its effect in
// none of the forms, those of the reference plugins included.
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
// 10,000 containers, once the socket is open. Deleting them takes some twenty messages
// more and 60 µs. A transaction does not wait for the kernel's grace period;
// closing a socket after a deletion does, for about ten milliseconds, in which
// no one can change rules. So a runtime keeps sockets open, see [Options].
//
// It needs CAP_NET_ADMIN over the network namespace. Off Linux it fails with
// [ErrNotSupported].
package netfilter

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/embedcni/cni/internal/kernel/joined"
)

// ErrNotSupported is returned off Linux. It is an [errors.ErrUnsupported].
var ErrNotSupported = fmt.Errorf("packet filters need Linux: %w", errors.ErrUnsupported)

// Plan is a list of deletions, in order. The zero Plan is empty.
type Plan struct{ found []found }

// found are rules of a target that exist in one packet filter.
type found struct {
	lines []string                    // commands that would delete them, in order
	apply func(context.Context) error // deletes them, and passes over rules that are gone
}

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
		for _, line := range f.lines {
			b.WriteString(line)
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// Apply deletes the rules of the plan, and none that have come since. It may be
// repeated, and passes over rules that are gone. An error names packet filter, table,
// chain and rule of each that cannot be deleted; Apply deletes the others.
//
// It waits for the lock of legacy iptables until the context ends.
func (p Plan) Apply(ctx context.Context) error {
	var errs []error
	for _, f := range p.found {
		errs = append(errs, f.apply(ctx))
	}
	return joined.Errors(errs...)
}

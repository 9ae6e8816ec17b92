package netfilter

import (
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"strings"
)

// Chain is a chain of the table nat of iptables that a plugin creates for one
// container on one network.
type Chain struct {
	Name string
	// Comment is the comment of the container's jumps to the chain, and of the
	// rules of bridge and ptp in it.
	Comment string
	format  string // of the comment, for a network and a container ID
}

// Chains returns the chains for the container on the network: of bridge and ptp,
// of portmap, and of portmap before v0.7, which today's DEL still knows.
func (o Owner) Chains() []Chain {
	chains := []Chain{
		{Name: chainName("", o.Network, o.ContainerID), format: jumpComment},
		// fillDnatRules in portmap_iptables.go: the quotes are no Go syntax, and a quote in
		// a name stays as it is.
		{Name: chainName("DN-", o.Network, o.ContainerID), format: `dnat name: "%s" id: "%s"`},
		{Name: chainName("SN-", o.Network, o.ContainerID), format: `snat name: "%s" id: "%s"`},
	}
	for i := range chains {
		chains[i].Comment = chains[i].comment(o.Network, o.ContainerID)
	}
	return chains
}

// chainName is the name of a container's chain: as much of a hash of network
// and id as the 28 bytes that iptables has for a name leave room for. The
// plugins' own function for it is in a package that links their nftables
// library, which a runtime has no use for; a test holds this one against it.
func chainName(prefix, network, id string) string {
	const longest = 28
	return ("CNI-" + prefix + hashOf(network+id))[:longest]
}

func hashOf(s string) string {
	sum := sha512.Sum512([]byte(s))
	return hex.EncodeToString(sum[:])
}

// jumpComment is the format of bridge's and ptp's comments in iptables.
const jumpComment = "name: %q id: %q"

// comment returns the comment for a network and a container ID. Portmap trims its own: the
// comment match can hold 255 bytes.
func (c Chain) comment(network, id string) string {
	s := fmt.Sprintf(c.format, network, id)
	if len(s) <= 255 || c.format == jumpComment {
		return s
	}
	return s[:253] + "..."
}

// Others returns the comments of all other containers whose chain has the same
// name. The name is the hash of network and ID joined, so that "pod" with "net1"
// and "podn" with "et1" share one.
func (c Chain) Others(o Owner) map[string]bool {
	both := o.Network + o.ContainerID
	comments := make(map[string]bool)
	for i := range len(both) {
		if other := c.comment(both[:i], both[i:]); other != c.Comment {
			comments[other] = true
		}
	}
	return comments
}

// Comment is the comment of the attachment's elements in this module's tables, and of
// the rules that bridge and ptp make with nftables: commentForInstance in
// pkg/ip/ipmasq_nftables_linux.go.
func (o Owner) Comment() string {
	plain := func(s string) string { return strings.ReplaceAll(s, `"`, "") }
	comment := fmt.Sprintf("%s-%s, net: %s, if: %s, id: %s",
		hashOf(o.Network)[:16],
		hashOf(o.IfName + ":" + o.ContainerID)[:16],
		plain(o.Network), plain(o.IfName), plain(o.ContainerID))
	const most = 128 // knftables.CommentLengthMax; nft takes no more
	return comment[:min(len(comment), most)]
}

// SpoofNames returns the comment and the chains of bridge's macspoofchk: uniqueID
// in bridge.go and pkg/link/spoofcheck.go.
func SpoofNames(id, ifName string) (comment string, chains []string) {
	ref := id + "-" + ifName
	return "macspoofchk-" + ref, []string{"cni-br-iface-" + ref, "cni-br-iface-" + ref + "-mac"}
}

package fwrules

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
	// format returns the comment for a network and a container ID.
	format func(network, id string) string
}

// Chains returns the chains for the container on the network: of bridge and ptp,
// of portmap, and of portmap before v0.7, which today's DEL still knows.
func (o Owner) Chains() []Chain {
	chains := []Chain{
		{Name: chainName("", o.Network, o.ContainerID), format: jumpComment},
		{Name: chainName("DN-", o.Network, o.ContainerID), format: dnatComment},
		{Name: chainName("SN-", o.Network, o.ContainerID), format: snatComment},
	}
	for i := range chains {
		chains[i].Comment = chains[i].format(o.Network, o.ContainerID)
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

// jumpComment is that of bridge's and ptp's jumps and rules in iptables.
func jumpComment(network, id string) string {
	return fmt.Sprintf("name: %q id: %q", network, id)
}

// Others returns the comments of all other containers whose chain has the same
// name. The name is the hash of network and ID joined, so that "pod" with "net1"
// and "podn" with "et1" share one.
func (c Chain) Others(o Owner) map[string]bool {
	both := o.Network + o.ContainerID
	comments := make(map[string]bool)
	for i := range len(both) {
		if other := c.format(both[:i], both[i:]); other != c.Comment {
			comments[other] = true
		}
	}
	return comments
}

// dnatComment is that of portmap's jumps, fillDnatRules in portmap_iptables.go.
// Its quotes are no Go syntax: a quote in a name stays as it is.
func dnatComment(network, id string) string {
	return trimComment(fmt.Sprintf(`dnat name: "%s" id: "%s"`, network, id))
}

// snatComment is that of portmap before v0.7.
func snatComment(network, id string) string {
	return trimComment(fmt.Sprintf(`snat name: "%s" id: "%s"`, network, id))
}

// trimComment is portmap's: the comment match can hold 255 bytes.
func trimComment(s string) string {
	if len(s) <= 255 {
		return s
	}
	return s[:253] + "..."
}

// Comment is the comment of the attachment's elements in the native table, and of
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

// Names returns the chains that are the attachment's own, and the comments of its
// rules in other chains. Portmap's comment in nftables, which is the container ID,
// is not among them.
func (o Owner) Names() (chains, comments []string) {
	spoof, chains := SpoofNames(o.ContainerID, o.IfName)
	for _, c := range o.Chains() {
		chains = append(chains, c.Name)
	}
	return chains, []string{o.Comment(), spoof}
}

package netfilter

import (
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/embedcni/cni/internal/iptables"
)

// What the plugins call what containers share.
const (
	tableNAT    = "nat"
	tableFilter = "filter"

	chainForward = "CNI-FORWARD"
	chainStage1  = "CNI-ISOLATION-STAGE-1"
	chainStage2  = "CNI-ISOLATION-STAGE-2"
)

func inTable(table, chain string) iptables.ChainID {
	return iptables.ChainID{Table: table, Chain: chain}
}

// ownChain is a chain of the table nat that a plugin makes for a container.
type ownChain struct {
	name string
	// comment is that of the container's jumps to it, and of bridge's and ptp's
	// rules in it; empty where a plugin makes none.
	comment string
	// format makes the comment for a network and an id.
	format func(network, id string) string
}

// ownChains returns the chains that are for the container on the network.
func ownChains(network, id string) []ownChain {
	chains := []ownChain{
		{name: chainName("", network, id), format: jumpComment},
		{name: chainName("DN-", network, id), format: dnatComment},
		// Of portmap before v0.7, which DEL of today still knows.
		{name: chainName("SN-", network, id), format: snatComment},
	}
	for i := range chains {
		chains[i].comment = chains[i].format(network, id)
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

// others returns the comments of whoever else's chain has the same name: it is
// the hash of network and id written one after the other, so that "pod" with
// "net1" and "podn" with "et1" share one.
func (c ownChain) others(network, id string) map[string]bool {
	both := network + id
	comments := make(map[string]bool)
	for i := range len(both) {
		if other := c.format(both[:i], both[i:]); other != c.comment {
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

// trimComment is portmap's: 255 bytes are what the comment match can hold.
func trimComment(s string) string {
	if len(s) <= 255 {
		return s
	}
	return s[:253] + "..."
}

// masqueradeComment is that of the rules that bridge and ptp make with
// nftables, commentForInstance in pkg/ip/ipmasq_nftables_linux.go.
func masqueradeComment(network, ifName, id string) string {
	plain := func(s string) string { return strings.ReplaceAll(s, `"`, "") }
	comment := fmt.Sprintf("%s-%s, net: %s, if: %s, id: %s",
		hashOf(network)[:16],
		hashOf(ifName + ":" + id)[:16],
		plain(network), plain(ifName), plain(id))
	const most = 128 // knftables.CommentLengthMax; nft takes no more
	return comment[:min(len(comment), most)]
}

// spoofNames are the comment and the chains of bridge's macspoofchk, see
// uniqueID in bridge.go and pkg/link/spoofcheck.go.
func spoofNames(id, ifName string) (comment string, chains []string) {
	ref := id + "-" + ifName
	return "macspoofchk-" + ref, []string{"cni-br-iface-" + ref, "cni-br-iface-" + ref + "-mac"}
}

// Names are the chains that are an attachment's own, and the comments of its
// rules elsewhere, as [Find] computes them. Portmap's comment in nftables is
// the container's id as it is, and not among them.
func Names(network, id, ifName string) (chains, comments []string) {
	spoof, chains := spoofNames(id, ifName)
	for _, c := range ownChains(network, id) {
		chains = append(chains, c.name)
	}
	return chains, []string{masqueradeComment(network, ifName, id), spoof}
}

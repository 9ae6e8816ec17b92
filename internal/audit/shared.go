package audit

import (
	"regexp"
	"strings"
)

// ofLedger marks a ledger of this library. Its content does not count: it
// covers all of an owner's containers, including removed ones.
const ofLedger = "ledger"

// Shared reports whether a line belongs to the network or the host instead of a
// container. The reference plugins and libcni create such things with the first
// container and keep them after the last one is gone. They are not leaks.
//
// Shared are only:
//   - bridges, their addresses and the kernel's routes for those;
//   - the chains of portmap and firewall that hold all containers' rules or the
//     jumps to them, their fixed rules, and the jumps to these chains; the
//     isolation rules of firewall, which are per bridge;
//   - the nftables tables of portmap and of the masquerading, and bridge's
//     table against spoofing, with their chains and fixed rules; the table of
//     this module's own plugins, with its chains, rules, sets and maps, but not
//     their elements, except for the ingress policies, which are per bridge;
//   - host-local's directory of a network, with the lock and the last allocated
//     address, libcni's directory of results, and flannel's of its delegates'
//     configurations;
//   - this library's ledgers, which GC uses.
//
// Shared knows only the default names. The name of a network's bridge is
// unknown, so every bridge counts as shared.
func Shared(line string) bool {
	what, rule, _ := strings.Cut(line, " ")
	switch what {
	case "link", "addr", "route":
		return sharedLink(line)
	case "dir":
		return strings.HasSuffix(line, "/ host-local") || strings.HasSuffix(line, "/results/") || strings.HasSuffix(line, "/flannel/")
	case "file":
		return strings.HasSuffix(line, " host-local") || strings.HasSuffix(line, " "+ofLedger)
	case "nft":
		return sharedNFT.MatchString(line)
	}
	return IsRule(line) && sharedIPTables.MatchString(rule)
}

// sharedLink checks the words at their positions, because a link can have any
// name.
func sharedLink(line string) bool {
	f := strings.Fields(line)
	switch f[0] {
	case "link", "addr": // link NAME type KIND
		return len(f) > 3 && f[2] == "type" && f[3] == "bridge"
	}
	// A route of another protocol was made for a container.
	return len(f) > 7 && f[2] == "dev" && f[4] == "type" && f[5] == "bridge" && f[6] == "proto" && f[7] == "kernel"
}

var sharedIPTables, sharedNFT = anyOf(exprsIPTables()), anyOf(exprsNFT())

// anyOf returns an expression that matches whole texts that one of exprs
// matches.
func anyOf(exprs []string) *regexp.Regexp {
	return regexp.MustCompile(`^(?:` + strings.Join(exprs, "|") + `)$`)
}

// exprsIPTables returns the expressions for shared rules of iptables, in
// iptables-save's format. The names and comments are those of the plugins
// portmap and firewall, v1.9.1. SNAT is a chain of portmap before v0.7.
func exprsIPTables() []string {
	const policy = `"CNI firewall plugin rules \(ingressPolicy: [a-z|-]+\)"`
	return []string{
		`nat -N CNI-HOSTPORT-(DNAT|SETMARK|MASQ|SNAT)`,
		`nat -A (PREROUTING|OUTPUT) -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT`,
		`nat -A POSTROUTING -m comment --comment "CNI portfwd requiring masquerade" -j CNI-HOSTPORT-MASQ`,
		`nat -A CNI-HOSTPORT-SETMARK -m comment --comment "CNI portfwd masquerade mark" -j MARK --set-xmark \S+`,
		`nat -A CNI-HOSTPORT-MASQ -m mark --mark \S+ -j MASQUERADE`,

		`filter -N (CNI-FORWARD|CNI-ADMIN|CNI-ISOLATION-STAGE-[12])`,
		`filter -A FORWARD -m comment --comment "CNI firewall plugin rules" -j CNI-FORWARD`,
		`filter -A CNI-FORWARD -m comment --comment "CNI firewall plugin admin overrides" -j CNI-ADMIN`,
		`filter -A FORWARD -m comment --comment ` + policy + ` -j CNI-ISOLATION-STAGE-1`,
		`filter -A CNI-ISOLATION-STAGE-1 -i \S+ ! -o \S+ -m comment --comment ` + policy + ` -j CNI-ISOLATION-STAGE-2`,
		`filter -A CNI-ISOLATION-STAGE-1 -i \S+ -o \S+ -m comment --comment ` + policy + ` -j DROP`,
		`filter -A CNI-ISOLATION-STAGE-2 -o \S+ -m comment --comment ` + policy + ` -j DROP`,
		`filter -A CNI-ISOLATION-STAGE-[12] -m comment --comment ` + policy + ` -j RETURN`,
	}
}

// exprsNFT returns the expressions for shared objects of nftables, in nft's
// format. A network's conditions precede the jump to portmap's chain.
func exprsNFT() []string {
	const (
		hostport = ` ip6? cni_hostport`
		masq     = ` inet cni_plugins_masquerade`
		spoof    = ` bridge nat`
		own      = ` (inet|bridge) embedcni`
		fixed    = `(containers[46]|hostports[46]|hostips[46]|bridges|isolated|same_bridge|(subnets|hairpin)[46]_\d+|ports|senders)`
		hook     = ` type \w+ hook .*`
	)
	return []string{
		`nft table` + hostport + `( comment ".*")?`,
		`nft chain` + hostport + ` (hostports|hostip_hostports|hostports_all)`,
		`nft chain` + hostport + ` (prerouting|output|masquerading)(` + hook + `)?`,
		`nft rule` + hostport + ` hostports_all jump (hostports|hostip_hostports)`,
		`nft rule` + hostport + ` (prerouting|output) ([^"]* )?fib daddr type local jump hostports_all`,

		`nft table` + masq + `( comment ".*")?`,
		`nft chain` + masq + ` masq_checks( comment ".*")?`,
		`nft chain` + masq + ` postrouting(` + hook + `)?`,
		`nft rule` + masq + ` postrouting (ip daddr 224\.0\.0\.0/4 return|ip6 daddr ff00::/8 return|goto masq_checks)`,

		`nft table` + spoof,
		`nft chain` + spoof + ` PREROUTING(` + hook + `)?`,

		`nft table` + own + `( comment ".*")?`,
		`nft (set|map)` + own + ` ` + fixed + `( type .*)?`,
		`nft chain` + own + ` (hostports|subnets|hairpin|containers)`,
		`nft chain` + own + ` (prerouting|output|postrouting|forward|spoofing)(` + hook + `)?`,
		`nft rule` + own + ` (hostports|subnets|hairpin|containers|prerouting|output|postrouting|forward|spoofing) .* comment "` + fixed + `?(hairpin|hostports|subnets|masquerade|multicast[46])?"`,
		// A policy belongs to the bridge and stays, like the policies of
		// iptables.
		`nft element` + own + ` (bridges|isolated|same_bridge) .*`,
	}
}

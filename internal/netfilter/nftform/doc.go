// Package nftform has the rules of attachments as the reference plugins make them with
// nftables: one rule for each address and port, in tables that all containers share.
// It implements [github.com/embedcni/cni/internal/netfilter/fwrules.NFTables], and the
// rules of the plugin bridge against other MAC addresses.
//
//	inet cni_plugins_masquerade   bridge, ptp: ipMasq    the attachment's comment
//	ip, ip6 cni_hostport          portmap                the container ID as comment
//	bridge nat                    bridge: macspoofchk    chains and a comment of the interface
//
// [Form] adds, checks, finds and deletes rules, and [SpoofCheck] those of macspoofchk.
// Begin with rulesOf, which computes a wantedRule for each address and port; base
// holds the tables, chains and fixed rules that these need, and a search describes
// the rules that belong to an attachment.
//
// Adding and deleting a rule takes longer with every container: the kernel copies
// the chain for each new rule, and a rule is found by listing its chain.
package nftform

// Package iptform has the rules of attachments as the reference plugins make them with
// iptables: a chain for each container and network, in chains that all containers
// share. It implements [github.com/embedcni/cni/internal/netfilter/fwrules.IPTables].
//
//	CNI-<hash>                              bridge, ptp: ipMasq
//	CNI-DN-<hash>, CNI-HOSTPORT-*           portmap
//	CNI-FORWARD, CNI-ADMIN, CNI-ISOLATION-* firewall
//
// [Form] adds rules with the variant, nf_tables or legacy, that the system runs under
// the name iptables, and finds and deletes rules in both variants.
//
// Begin with desiredOf, which computes the chains and rules of one family in the order
// in which the plugins make them. A maker adds them: it looks at the existing chains
// and rules (facts), over netlink where the kernel can be asked, and makes the missing
// ones in one transaction: by messages to the kernel in the nf_tables variant, else, or
// where only the tool knows the form of a rule, by iptables-restore. A footprint describes the rules that
// belong to an attachment, for DEL and for the sweep.
package iptform

// Package reference knows the rules that the reference plugins make for attachments, in
// each of their forms: it looks whether they have effect, finds them and deletes them. It
// makes none. Until 2028 it does the same for what earlier versions of this module have
// made in these forms.
//
// iptables has a chain for each container and network, in chains that all containers
// share:
//
//	CNI-<hash>                              bridge, ptp: ipMasq
//	CNI-DN-<hash>, CNI-HOSTPORT-*           portmap
//	CNI-FORWARD, CNI-ADMIN, CNI-ISOLATION-* firewall
//
// nftables has one rule for each address and port, in tables that all containers share:
//
//	inet cni_plugins_masquerade   bridge, ptp: ipMasq    the attachment's comment
//	ip, ip6 cni_hostport          portmap                the container ID as comment
//	bridge nat                    bridge: macspoofchk    chains and a comment of the interface
//
// A search describes the rules that belong to an attachment in nftables, by chain, comment
// and address; find has the commands that delete those of iptables. A Sight is all rules at
// one time; it recognises a rule by the values that identify it, because versions of the
// tools write the rest differently.
package reference

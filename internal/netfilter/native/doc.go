// Package native has the rules of attachments as elements of sets and maps in the
// tables inet embedcni and bridge embedcni, which are this module's own. A packet and a
// change cost the same for any number of containers.
//
// An address belongs to one attachment at a time: an ADD takes over the elements that
// another attachment left with the address, and the late DEL of that attachment leaves them
// alone. If the other still lives, on a network of its own, the element does the same for
// both meanwhile; Form.Displace has the caller note that it is to be given back. A port of the host belongs to the first container that asks for it. The ADD of
// another container fails with fwrules.ErrHostPortTaken; one of the same container leaves the
// port as it is, see fwrules.Siblings.
//
// [Form] adds, checks, finds and deletes elements. Begin with elementsOf, which
// computes the elements of rules; the layout holds the sets, chains and rules that
// the elements need, and owned describes the elements that belong to an attachment.
//
// # The table
//
// The first container creates the table, and it stays. It may be deleted when no
// container needs it. "nft list table inet embedcni" prints it in a form that
// "nft -f" loads again.
//
//	set containers4, containers6       addresses whose packets are masqueraded, except …
//	set subnets4_24, subnets6_64, …    … within the container's own subnet: address . first address of the
//	                                   subnet, a set for each length of prefix in use
//	map hostports4, hostports6         protocol . port : address . port of the container
//	map hostips4, hostips6             the same for one address of the host; these go first
//	set hairpin4_24, hairpin4_8, …     address . first address of a network whose packets to a forwarded port
//	                                   are masqueraded: the container's subnet, 127.0.0.0/8, or all (_0)
//	set bridges, isolated, same_bridge interfaces with an ingress policy; these are per bridge, and stay
//
// The first container whose frames are checked creates the table for bridges:
//
//	set ports                          interfaces on a bridge that take frames only from …
//	set senders                        … these: interface . MAC address
//
// Every other element has its attachment as the comment: a hash of it, network,
// interface and container ID. The comment alone decides whose an element is.
// There are a few rules, each with a comment, in the chains prerouting and output
// (host ports), postrouting (masquerading) and forward (ingress policies). No rule
// belongs to a container. Empty sets stay, and so do rules for a length of prefix
// that is no longer in use.
//
// A container that asks for its own forwarded port, from within one subnet, needs
// hairpinMode of the plugin bridge: the bridge must send packets back by the port
// that they came from.
package native

// Package reconcile has the decisions of a comparison between the containers that a
// scheduler believes in and those on record. It calls no plugin and no kernel.
package reconcile

import (
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/conflist"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/record"
)

// Unexpected returns the IDs of the containers on record that nobody has named, in order.
// A record that names no container has the name that nameOf gives it. Containers that a
// pool has made are nobody's yet.
func Unexpected(found []record.Found, named map[record.ID]bool, nameOf func(record.Found) string) (ids []string) {
	for _, f := range found {
		if !f.Record.Warm && !named[f.Record.ContainerID] {
			ids = append(ids, nameOf(f))
		}
	}
	slices.Sort(ids)
	return ids
}

// Asking is the way in which a network can be asked for addresses.
type Asking int

const (
	Nobody     Asking = iota // no plugin of the network takes a request
	Capability               // by the capability "ips"
	Argument                 // by "ips" in args.cni
)

// Key is the name of both.
const Key = "ips"

// AskFor returns the way in which a network can be asked for the addresses that a
// container had. A network that declares the capability can be asked by it. Without it
// host-local takes the argument. So does static, but then it forgets the configured
// gateways, and it assigns the same addresses anyway. is reports whether the plugin of a
// type reads its configuration like the built-in one.
func AskFor(list *libcni.NetworkConfigList, is func(typ string) bool) Asking {
	asking := Nobody
	for _, p := range list.Plugins {
		switch ipam := p.Network.IPAM.Type; {
		case ipam == "":
		case ipam == known.Static:
			return Nobody
		case ipam == known.HostLocal && is(ipam):
			asking = Argument
		case !conflist.Declares(list, Key):
			return Nobody
		default:
			asking = Capability
		}
	}
	if asking != Nobody && conflist.Declares(list, Key) {
		return Capability
	}
	return asking
}

// Lost returns the addresses that are in before and not in after.
func Lost(before, after []netip.Addr) (lost []netip.Addr) {
	for _, a := range before {
		if !slices.Contains(after, a) && !slices.Contains(lost, a) {
			lost = append(lost, a)
		}
	}
	return lost
}

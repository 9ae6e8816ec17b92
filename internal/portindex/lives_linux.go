package portindex

import (
	"errors"

	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/netns"
)

// livesOn reports whether the attachment certainly lives, and on this host: its path leads
// to a namespace in which its interface is one end of a pair, and the other end is here.
// The cache does not say from which namespace plugins ran.
func (a Cached) livesOn(host *hostns.NetNS) (lives bool, err error) {
	if a.NetNS == "" {
		return false, nil
	}
	ns, err := netns.Open(a.NetNS)
	if err != nil {
		return false, nil // gone, or out of reach
	}
	defer func() { err = errors.Join(err, ns.Close()) }()
	inside, err := host.Conns.Borrow(ns)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, inside.Close()) }()
	own, err := inside.Link(a.IfName)
	if links.NotFound(err) || err == nil && (own.Kind != "veth" || !own.Peer.Elsewhere) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	here, err := host.Conns.Borrow(host.Handle)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, here.Close()) }()
	end, err := here.LinkByIndex(own.Peer.Index)
	if links.NotFound(err) {
		return false, nil
	}
	return err == nil && end.Kind == "veth" && end.Peer.Elsewhere && end.Peer.Index == own.Index, err
}

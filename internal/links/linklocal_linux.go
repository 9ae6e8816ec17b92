package links

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/netns"
)

// LinkLocal gives a new interface its link-local IPv6 address at once. The kernel
// does so when there is a carrier, and then looks for duplicates of it for 1 to
// 2 s, during which it sends no solicitation for a packet that it forwards: a first
// connection takes as long. It is for interfaces on whose network nobody else is,
// and which have had no carrier yet.
//
// The address is the one that the kernel would make of the MAC address, which it
// then finds there. If it is set to make another (addr_gen_mode), that is left to
// it, without the detection. LinkLocal returns the address that it added, or none
// where there is no IPv6.
func (c *Conn) LinkLocal(ns *netns.Handle, l Link) (netip.Prefix, error) {
	if l.MTU < smallestMTU6 || len(l.MAC) != 6 {
		return netip.Prefix{}, nil
	}
	if l.Settings.addrGenMode > addrGenNone {
		return netip.Prefix{}, WriteSysctls(ns, Sysctl{Path: "net/ipv6/conf/" + l.Name + "/accept_dad", Value: "0", Optional: true})
	}
	p := linkLocal([6]byte(l.MAC))
	err := c.AddAddress(l.Index, p, 0)
	switch {
	case err == nil, errors.Is(err, unix.EEXIST):
		return p, nil
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EAFNOSUPPORT):
		return netip.Prefix{}, nil // it is disabled there, or in this kernel
	}
	return netip.Prefix{}, fmt.Errorf("interface %q: %w", l.Name, err)
}

// smallestMTU6 is that of IPv6 (RFC 8200, section 5).
const smallestMTU6 = 1280

// linkLocal is the address that a MAC address makes (RFC 4291, appendix A).
func linkLocal(mac [6]byte) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom16([16]byte{
		0: 0xfe, 1: 0x80, 8: mac[0] ^ 2, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe, 13: mac[3], 14: mac[4], 15: mac[5],
	}), 64)
}

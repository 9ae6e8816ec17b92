package links

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/netns"
)

// LinkLocal gives a new interface its link-local IPv6 address at once. The
// kernel adds the address only once there is a carrier, and then detects
// duplicates for 1 to 2 s. Until then it sends no solicitation for a forwarded
// packet, which delays the first connection. LinkLocal is for interfaces that
// have had no carrier yet and whose network has no other machine.
//
// The kernel would derive the same address from the MAC address, and finds it
// there. If the kernel is set to derive another address (addr_gen_mode),
// LinkLocal only turns off duplicate detection. LinkLocal returns the address,
// or the zero Prefix if it left the address to the kernel or there is no IPv6.
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

// smallestMTU6 is the smallest MTU of IPv6 (RFC 8200, section 5).
const smallestMTU6 = 1280

// linkLocal returns the link-local address of a MAC address (RFC 4291, appendix
// A).
func linkLocal(mac [6]byte) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom16([16]byte{
		0: 0xfe, 1: 0x80, 8: mac[0] ^ 2, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe, 13: mac[3], 14: mac[4], 15: mac[5],
	}), 64)
}

package links

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/netns"
)

// Address is an address of an interface.
type Address struct {
	netip.Prefix
	// Tentative and Duplicate report the state of IPv6 duplicate address
	// detection: the address is not usable yet, or never (RFC 4862, section 5.4).
	Tentative, Duplicate bool
}

// AddAddress adds an address to an interface. The error wraps EEXIST if the
// interface has it already. It ignores the errors in fine.
//
// Detect lets the interface (accept_dad) decide about duplicate address
// detection for an IPv6 address, during which it is tentative for 1 to 2 s.
// Without detect there is none: no other machine has an address that was
// allocated for this one. The kernel announces only an address that was
// tentative, however shortly (ndisc_notify).
func (c *Conn) AddAddress(index int, p netip.Prefix, detect bool, fine ...error) error {
	m := addressMessage(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK, index, p)
	var kernel uint32
	if p.Addr().Is6() && !detect {
		kernel = unix.IFA_F_NODAD
	}
	m.AddData(u32(unix.IFA_FLAGS, kernel))
	return c.do(m, nil, fmt.Sprintf("add address %s", p), fine...)
}

// DeleteAddress deletes an address. It ignores a missing one.
func (c *Conn) DeleteAddress(index int, p netip.Prefix) error {
	m := addressMessage(unix.RTM_DELADDR, unix.NLM_F_ACK, index, p)
	return c.do(m, nil, fmt.Sprintf("delete address %s", p), unix.EADDRNOTAVAIL, unix.ENODEV)
}

// addressMessage is a request about one address. With an IPv4 address it sends
// the broadcast address that follows from the prefix length (RFC 919).
func addressMessage(typ, flags, index int, p netip.Prefix) *nl.NetlinkRequest {
	raw := p.Addr().AsSlice()
	m := request(typ, flags, ifaddr(p.Addr(), p.Bits(), index), data(unix.IFA_LOCAL, raw...), data(unix.IFA_ADDRESS, raw...))
	if p.Addr().Is4() && p.Bits() < 31 {
		m.AddData(data(unix.IFA_BROADCAST, lastAddress(p).AsSlice()...))
	}
	return m
}

// lastAddress returns the prefix's address with all host bits set.
func lastAddress(p netip.Prefix) netip.Addr {
	raw := p.Addr().AsSlice()
	for i := p.Bits(); i < len(raw)*8; i++ {
		raw[i/8] |= 0x80 >> (i % 8)
	}
	addr, _ := netip.AddrFromSlice(raw) // a slice of a valid length
	return addr
}

// ifaddr is the fixed part of a request about an address.
func ifaddr(addr netip.Addr, bits, index int) *nl.IfAddrmsg {
	m := nl.NewIfAddrmsg(int(family(addr)))
	m.Prefixlen, m.Index = uint8(bits), uint32(index)
	return m
}

func family(addr netip.Addr) byte {
	switch {
	case addr.Is4():
		return unix.AF_INET
	case addr.Is6():
		return unix.AF_INET6
	}
	return unix.AF_UNSPEC
}

// Addresses reads the addresses of an interface, or of all if index is 0, of both families.
// An interface that is gone has none. The error may wrap [ErrTorn].
func (c *Conn) Addresses(index int) (all []Address, err error) {
	m := request(unix.RTM_GETADDR, unix.NLM_F_DUMP, ifaddr(netip.Addr{}, 0, index))
	err = c.list(m, func() { all = nil }, func(m message) {
		// Older kernels list those of all, and a family may be one that is not read here.
		if of, a := parseAddress(m); (of == index || index == 0) && a.IsValid() {
			all = append(all, a)
		}
	})
	switch {
	case errors.Is(err, unix.ENODEV):
		return all, nil
	case index == 0:
		return all, saying("list the addresses of all interfaces", err)
	}
	return all, saying(fmt.Sprintf("list the addresses of interface %d", index), err)
}

// parseAddress reads an RTM_NEWADDR, with the index of its interface.
func parseAddress(m message) (of int, a Address) {
	fixed := nl.DeserializeIfAddrmsg(m.body)
	raw := m.get(unix.IFA_LOCAL)
	if raw == nil {
		raw = m.get(unix.IFA_ADDRESS) // the other end's address, if there is a local one too
	}
	flags := uint32(fixed.Flags)
	if m.get(unix.IFA_FLAGS) != nil { // all 32 of them
		flags = m.num(unix.IFA_FLAGS)
	}
	addr, _ := netip.AddrFromSlice(raw)
	return int(fixed.Index), Address{
		Prefix:    netip.PrefixFrom(addr, int(fixed.Prefixlen)),
		Tentative: flags&unix.IFA_F_TENTATIVE != 0,
		Duplicate: flags&unix.IFA_F_DADFAILED != 0,
	}
}

// Prefix converts an address with its mask.
func Prefix(n net.IPNet) (netip.Prefix, error) {
	addr, ok := netip.AddrFromSlice(n.IP)
	addr = addr.Unmap()
	ones, bits := n.Mask.Size()
	if bits == 128 && addr.Is4() { // an IPv4 mask in the form of IPv6
		ones, bits = ones-96, 32
	}
	if !ok || bits != addr.BitLen() || ones < 0 {
		return netip.Prefix{}, fmt.Errorf("invalid address %q", n.String())
	}
	return netip.PrefixFrom(addr, ones), nil
}

// Groups returns the IPv6 multicast groups of an interface.
func Groups(c *Conn, index int) ([]netip.Addr, error) {
	var all []netip.Addr
	m := request(unix.RTM_GETMULTICAST, unix.NLM_F_DUMP, ifaddr(netip.IPv6Unspecified(), 0, index))
	err := c.list(m, func() { all = nil }, func(m message) {
		if addr := m.address(unix.IFA_MULTICAST); addr.IsValid() && int(nl.DeserializeIfAddrmsg(m.body).Index) == index {
			all = append(all, addr)
		}
	})
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return nil, fmt.Errorf("list the multicast groups of interface %d: %w", index, err)
	}
	return all, nil
}

// Solicited returns the group in which neighbours ask for an IPv6 address (RFC
// 4291, section 2.7.1).
func Solicited(a netip.Addr) netip.Addr {
	group := [16]byte{0: 0xff, 1: 2, 11: 1, 12: 0xff}
	raw := a.As16()
	copy(group[13:], raw[13:])
	return netip.AddrFrom16(group)
}

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
func LinkLocal(c *Conn, ns *netns.Handle, l Link) (netip.Prefix, error) {
	if l.MTU < smallestMTU6 || len(l.MAC) != 6 {
		return netip.Prefix{}, nil
	}
	if l.Settings.addrGenMode > addrGenNone {
		return netip.Prefix{}, WriteSysctls(ns, Sysctl{Path: "net/ipv6/conf/" + l.Name + "/accept_dad", Value: "0", Optional: true})
	}
	p := linkLocal([6]byte(l.MAC))
	err := c.AddAddress(l.Index, p, false)
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

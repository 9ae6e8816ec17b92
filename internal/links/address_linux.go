package links

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Address is an address of an interface.
type Address struct {
	netip.Prefix
	// Tentative and Duplicate report the state of IPv6 duplicate address
	// detection: the address is not usable yet, or never (RFC 4862, section 5.4).
	Tentative, Duplicate bool
}

// AddressFlag changes how the kernel adds an address.
type AddressFlag uint32

const (
	// Detect lets the interface (accept_dad) decide about duplicate address
	// detection for an IPv6 address, during which it is tentative for 1 to 2 s.
	// Without Detect there is none: no other machine has an address that was
	// allocated for this one. The kernel announces only an address that was
	// tentative, however shortly (ndisc_notify).
	Detect AddressFlag = 1 << iota
	// NoSubnet adds no route to the address's subnet.
	NoSubnet
)

// AddAddress adds an address to an interface. The error wraps EEXIST if the
// interface has it already.
func (c *Conn) AddAddress(index int, p netip.Prefix, flags AddressFlag) error {
	r := c.Requests()
	r.AddAddress(index, p, flags)
	return r.Send()
}

// AddAddress adds an address to an interface. It ignores the errors in fine.
func (r *Requests) AddAddress(index int, p netip.Prefix, flags AddressFlag, fine ...error) {
	m := addressMessage(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK, index, p)
	var kernel uint32
	if p.Addr().Is6() && flags&Detect == 0 {
		kernel |= unix.IFA_F_NODAD
	}
	if flags&NoSubnet != 0 {
		kernel |= unix.IFA_F_NOPREFIXROUTE
	}
	if kernel != 0 {
		m.u32(unix.IFA_FLAGS, kernel)
	}
	r.add(m, nil, fmt.Sprintf("add address %s", p), fine...)
}

// DeleteAddress deletes an address. It ignores a missing one.
func (c *Conn) DeleteAddress(index int, p netip.Prefix) error {
	err := c.execute(addressMessage(unix.RTM_DELADDR, unix.NLM_F_ACK, index, p), nil)
	if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete address %s: %w", p, err)
	}
	return nil
}

// addressMessage is a request about one address. With an IPv4 address it sends
// the broadcast address that follows from the prefix length (RFC 919).
func addressMessage(typ, flags uint16, index int, p netip.Prefix) *message {
	m := newMessage(typ, flags, ifaddr(p.Addr(), p.Bits(), index))
	raw := p.Addr().AsSlice()
	m.attr(unix.IFA_LOCAL, raw)
	m.attr(unix.IFA_ADDRESS, raw)
	if p.Addr().Is4() && p.Bits() < 31 {
		m.attr(unix.IFA_BROADCAST, lastAddress(p).AsSlice())
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

// ifaddr encodes a struct ifaddrmsg (<linux/if_addr.h>).
func ifaddr(addr netip.Addr, bits, index int) []byte {
	b := make([]byte, unix.SizeofIfAddrmsg)
	b[0] = family(addr)
	b[1] = byte(bits)
	native.PutUint32(b[4:], uint32(index))
	return b
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

// Addresses reads the addresses of an interface, of both families, and of no
// other interface.
func (c *Conn) Addresses(index int) ([]Address, error) {
	r := c.Requests()
	all := r.Addresses(index)
	err := r.Send()
	return *all, err
}

// Addresses reads the addresses of an interface, of both families. An interface
// that is gone has none.
func (r *Requests) Addresses(index int) *[]Address {
	all := new([]Address)
	m := newMessage(unix.RTM_GETADDR, unix.NLM_F_DUMP, ifaddr(netip.Addr{}, 0, index))
	r.add(m, func(body []byte) error {
		a, of, err := parseAddress(body)
		if err == nil && of == index {
			*all = append(*all, a)
		}
		return err
	}, fmt.Sprintf("list the addresses of interface %d", index), unix.ENODEV)
	return all
}

// Placed is an address with the index of its interface.
type Placed struct {
	Address
	Interface int
}

// AllAddresses reads the addresses of all interfaces; those of one interface are
// in the order of Addresses. The error may wrap [ErrTorn].
func (c *Conn) AllAddresses() ([]Placed, error) {
	all, err := listFamilies(c, unix.RTM_GETADDR, unix.SizeofIfAddrmsg, nil, func(all []Placed, body []byte) ([]Placed, error) {
		a, of, err := parseAddress(body)
		return append(all, Placed{a, of}), err
	})
	if err != nil {
		err = fmt.Errorf("list the addresses of all interfaces: %w", err)
	}
	return all, err
}

// parseAddress reads the body of an RTM_NEWADDR, and returns the interface's
// index with it.
func parseAddress(body []byte) (Address, int, error) {
	if len(body) < unix.SizeofIfAddrmsg {
		return Address{}, 0, errTruncated
	}
	flags := uint32(body[2])
	var addr, local netip.Addr
	err := eachAttr(body[unix.SizeofIfAddrmsg:], func(typ uint16, value []byte) {
		switch typ {
		case unix.IFA_ADDRESS: // the other end's address, if there is a local one too
			addr, _ = netip.AddrFromSlice(value)
		case unix.IFA_LOCAL:
			local, _ = netip.AddrFromSlice(value)
		case unix.IFA_FLAGS: // all 32 of them
			flags = number(value)
		}
	})
	if local.IsValid() {
		addr = local
	}
	return Address{
		Prefix:    netip.PrefixFrom(addr, int(body[1])),
		Tentative: flags&unix.IFA_F_TENTATIVE != 0,
		Duplicate: flags&unix.IFA_F_DADFAILED != 0,
	}, int(native.Uint32(body[4:])), err
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
func (c *Conn) Groups(index int) ([]netip.Addr, error) {
	var all []netip.Addr
	fixed := make([]byte, unix.SizeofIfAddrmsg)
	fixed[0] = unix.AF_INET6
	native.PutUint32(fixed[4:], uint32(index))
	err := c.execute(newMessage(unix.RTM_GETMULTICAST, unix.NLM_F_DUMP, fixed), func(body []byte) error {
		if len(body) < unix.SizeofIfAddrmsg {
			return errTruncated
		}
		if int(native.Uint32(body[4:])) != index {
			return nil
		}
		return eachAttr(body[unix.SizeofIfAddrmsg:], func(typ uint16, value []byte) {
			if addr, ok := netip.AddrFromSlice(value); ok && typ == unix.IFA_MULTICAST {
				all = append(all, addr)
			}
		})
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

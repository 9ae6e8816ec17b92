package netconf

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"
)

// allows reports whether a subnet is what the range asks for.
func (r Range) allows(p netip.Prefix) bool {
	return p.Bits() == r.Bits && slices.ContainsFunc(r.Pools, func(pool netip.Prefix) bool {
		return pool.Bits() <= p.Bits() && pool.Contains(p.Addr())
	})
}

// probes is how many subnets of a pool are tried in the order of hashes, and mostSteps
// how many one after the other then. A pool of IPv4 has no more than that.
const probes, mostSteps = 256, 1 << 22

// chooseSubnet returns a subnet for a range that overlaps none of those in use. It is the
// same for the same name while nothing gets in its way, so that several hosts are likely to
// agree. The pools are tried in order.
func chooseSubnet(name string, r Range, used []netip.Prefix) (netip.Prefix, bool) {
	for _, pool := range r.Pools {
		in := slices.DeleteFunc(slices.Clone(used), func(p netip.Prefix) bool { return !p.Overlaps(pool) })
		if p, ok := chooseFrom(name, pool.Masked(), r.Bits, in); ok {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

func chooseFrom(name string, pool netip.Prefix, bits int, used []netip.Prefix) (p netip.Prefix, ok bool) {
	if bits < pool.Bits() || slices.ContainsFunc(used, func(u netip.Prefix) bool { return u.Bits() <= pool.Bits() }) {
		return p, false
	}
	last := uint64(1)<<min(bits-pool.Bits(), 63) - 1 // count - 1
	at := uint64(0)
	for n := range probes + int(min(last+1, mostSteps)) {
		if at++; n <= probes {
			at = hash(name, pool, n)
		}
		if p = nth(pool, bits, at&last); !slices.ContainsFunc(used, p.Overlaps) {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

func hash(name string, pool netip.Prefix, n int) uint64 {
	sum := sha256.Sum256(binary.BigEndian.AppendUint32([]byte(pool.String()+" "+name+" "), uint32(n)))
	return binary.BigEndian.Uint64(sum[:])
}

// nth returns the subnet with that number in a pool.
func nth(pool netip.Prefix, bits int, n uint64) netip.Prefix {
	b := pool.Addr().As16()
	at := bits // of the last bit of the number
	if pool.Addr().Is4() {
		at += 96
	}
	for ; n != 0; n >>= 1 {
		at--
		b[at/8] |= byte(n&1) << (7 - at%8)
	}
	addr := netip.AddrFrom16(b)
	if pool.Addr().Is4() {
		addr = addr.Unmap()
	}
	return netip.PrefixFrom(addr, bits)
}

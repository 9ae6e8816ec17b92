package ports

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/embedcni/cni/internal/kernel/joined"
)

// Local are the ports of a host that its kernel gives to sockets.
type Local struct {
	Ephemeral Row   // net.ipv4.ip_local_port_range, for IPv6 too
	Reserved  []Row // net.ipv4.ip_local_reserved_ports: of those, it gives none
}

// Row is a row of ports.
type Row struct{ First, Last uint16 }

func (r Row) has(port uint16) bool { return r.First <= port && port <= r.Last }

// IsEphemeral reports whether a port is in the range of ephemeral ports.
func (l Local) IsEphemeral(port uint16) bool { return l.Ephemeral.has(port) }

// IsReserved reports whether a port is reserved.
func (l Local) IsReserved(port uint16) bool {
	return slices.ContainsFunc(l.Reserved, func(r Row) bool { return r.has(port) })
}

// ParseRows reads rows of ports as the kernel writes them: "8080,9148-9150".
func ParseRows(text string) (all []Row, err error) {
	for _, one := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == '\n' }) {
		first, last, ranged := strings.Cut(one, "-")
		if !ranged {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 16)
		to, terr := strconv.ParseUint(last, 10, 16)
		if err := cmp.Or(err, terr); err != nil {
			return nil, fmt.Errorf("ports %q: %w", text, err)
		}
		all = append(all, Row{uint16(from), uint16(to)})
	}
	return all, nil
}

// Range is a range of ports from which some are chosen.
type Range struct {
	First, Last uint16
	Named       bool // by the caller: ports that are reserved on the host may be for this
}

// Picked is a range with the ports of it that must not be chosen.
type Picked struct {
	Range
	Protocols []string // for which they are chosen
	Excluded  int      // ephemeral, or reserved for others
	InUse     int      // by sockets, of those that were examined

	avoid   map[uint16]bool
	refused []uint16
}

// Pick returns the range without ports that the kernel of the host gives to sockets, or
// that are reserved there for others.
func Pick(r Range, protocols []string, kernel Local) *Picked {
	p := &Picked{Range: r, Protocols: protocols, avoid: make(map[uint16]bool)}
	for _, s := range append(kernel.Reserved, kernel.Ephemeral) {
		for port := int(max(s.First, r.First)); port <= int(min(s.Last, r.Last)); port++ {
			if n := uint16(port); !r.Named || !kernel.IsReserved(n) {
				p.avoid[n] = true
			}
		}
	}
	p.Excluded = len(p.avoid)
	return p
}

// Avoids reports whether a port must not be chosen.
func (p *Picked) Avoids(port uint16) bool { return p.avoid[port] }

// Use adds ports that must not be chosen: sockets have them.
func (p *Picked) Use(all []uint16) { p.InUse += len(p.add(all)) }

// Avoid adds ports that must not be chosen: containers have them.
func (p *Picked) Avoid(all []uint16) { p.refused = append(p.refused, p.add(all)...) }

// add adds ports that must not be chosen, and returns those that could be before.
func (p *Picked) add(all []uint16) (added []uint16) {
	for _, port := range all {
		if !p.avoid[port] {
			p.avoid[port] = true
			added = append(added, port)
		}
	}
	return added
}

// Claims returns the claims of ports of the range, at all addresses.
func (p *Picked) Claims(chosen []uint16) (claims []Claim) {
	for _, port := range chosen {
		for _, protocol := range p.Protocols {
			claims = append(claims, Claim{Protocol: protocol, Port: port})
		}
	}
	return claims
}

// Leave keeps the ports of claims from being chosen. They are claims of the same call, which
// would map a port twice.
func (p *Picked) Leave(claims []Claim) {
	for _, c := range claims {
		if slices.Contains(p.Protocols, c.Protocol) {
			p.avoid[c.Port] = true
		}
	}
}

// Refused returns the ports that were added by Avoid.
func (p *Picked) Refused() []uint16 { return p.refused }

// Foreign returns the wanted ports at addresses that the host does not have. It asks for
// each address once. With an error these are the known ones.
func Foreign(wanted []Claim, hasAddress func(netip.Addr) (bool, error)) (found []Claim, err error) {
	known := make(map[netip.Addr]bool)
	for _, c := range wanted {
		if !c.Addr.IsValid() || c.Addr.IsUnspecified() {
			continue
		}
		has, ok := known[c.Addr]
		if !ok {
			var herr error
			if has, herr = hasAddress(c.Addr); herr != nil {
				has, err = true, joined.Errors(err, fmt.Errorf("look up address %v of the host: %w", c.Addr, herr))
			}
			known[c.Addr] = has
		}
		if !has {
			found = append(found, c)
		}
	}
	return found, err
}

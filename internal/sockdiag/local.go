package sockdiag

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Local are the ports of a host that its kernel gives to sockets.
type Local struct {
	Ephemeral Span   // net.ipv4.ip_local_port_range, for IPv6 too
	Reserved  []Span // net.ipv4.ip_local_reserved_ports: of those, it gives none
}

// Span is a row of ports.
type Span struct{ First, Last uint16 }

func (s Span) has(port uint16) bool { return s.First <= port && port <= s.Last }

// IsEphemeral reports whether a port is in the range of ephemeral ports.
func (l Local) IsEphemeral(port uint16) bool { return l.Ephemeral.has(port) }

// IsReserved reports whether a port is reserved.
func (l Local) IsReserved(port uint16) bool {
	return slices.ContainsFunc(l.Reserved, func(s Span) bool { return s.has(port) })
}

// parseSpans reads rows of ports as the kernel writes them: "8080,9148-9150".
func parseSpans(text string) (all []Span, err error) {
	for _, one := range strings.Split(strings.TrimSpace(text), ",") {
		if one == "" {
			continue
		}
		first, last, ranged := strings.Cut(one, "-")
		if !ranged {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("ports %q: %w", text, err)
		}
		to, err := strconv.ParseUint(last, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("ports %q: %w", text, err)
		}
		all = append(all, Span{uint16(from), uint16(to)})
	}
	return all, nil
}

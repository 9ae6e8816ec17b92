package ports

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/embedcni/cni/internal/store/record"
)

// The parts of a port that an error names.
const (
	partAddr      = "host address"
	partHost      = "host port"
	partContainer = "container port"
	partProtocol  = "protocol"
)

// Parse reads a port as people write it, or a range of ports:
//
//	80  :80  8080:80  127.0.0.1:8080:80/udp  [::1]::53/tcp+udp  8000-8010:9000-9010
//
// The error names the part that is wrong. The host port is 0 if it is to be chosen.
// Protocols are in lower case, each once.
func Parse(text string) ([]record.Port, error) {
	p := parser{text}
	rest, protocols, named := strings.Cut(text, "/")
	one := record.Port{Protocols: []string{"tcp"}}
	var err error
	if named {
		if one.Protocols, err = p.protocols(protocols); err != nil {
			return nil, err
		}
	}
	addr, rest, err := p.cutAddr(rest)
	if err != nil {
		return nil, err
	}
	if addr.IsValid() {
		one.HostIP = addr.String()
	}
	host, container, both := strings.Cut(rest, ":")
	if !both {
		host, container = "", rest
	}
	first, last, err := p.ports(partContainer, container)
	if err != nil {
		return nil, err
	}
	var from, to uint16
	if host != "" {
		if from, to, err = p.ports(partHost, host); err != nil {
			return nil, err
		}
		if to-from != last-first {
			return nil, p.wrong(partHost, host, "has %d ports for %d of the container", int(to-from)+1, int(last-first)+1)
		}
	}
	var all []record.Port
	for i := range int32(last-first) + 1 {
		r := one
		r.ContainerPort = int32(first) + i
		r.Protocols = slices.Clone(one.Protocols)
		if host != "" {
			r.HostPort = int32(from) + i
		}
		all = append(all, r)
	}
	return all, nil
}

// parser names the text in its errors.
type parser struct{ text string }

func (p parser) wrong(part, value, reason string, args ...any) error {
	return fmt.Errorf("port %q: %s %q %s", p.text, part, value, fmt.Sprintf(reason, args...))
}

func (p parser) protocols(text string) (all []string, err error) {
	for _, one := range strings.Split(text, "+") {
		name := strings.ToLower(one)
		switch {
		case !slices.Contains(Protocols(), name):
			return nil, p.wrong(partProtocol, one, "is none of tcp, udp, sctp")
		case slices.Contains(all, name):
			return nil, p.wrong(partProtocol, one, "is named twice")
		}
		all = append(all, name)
	}
	return all, nil
}

// cutAddr cuts the address and its colon off.
func (p parser) cutAddr(text string) (addr netip.Addr, rest string, err error) {
	var name string
	if strings.HasPrefix(text, "[") {
		closed := false
		if name, rest, closed = strings.Cut(text[1:], "]"); !closed {
			return addr, "", p.wrong(partAddr, text, "has no closing bracket")
		}
		ported := false
		if rest, ported = strings.CutPrefix(rest, ":"); !ported || !strings.Contains(rest, ":") {
			return addr, "", p.wrong(partAddr, "["+name+"]", "must be followed by :HOST:CONTAINER, or ::CONTAINER for a host port to choose")
		}
	} else {
		colons := strings.Count(text, ":")
		if colons < 2 {
			return addr, text, nil
		}
		if colons > 2 {
			name = beforePorts(text)
			return addr, "", p.wrong(partAddr, name, "needs brackets if it is an IPv6 address, and is none of IPv4")
		}
		name, rest, _ = strings.Cut(text, ":")
	}
	if addr, err = ParseAddr(name); err != nil {
		return addr, "", p.wrong(partAddr, name, "%v", err)
	}
	return addr, rest, nil
}

// beforePorts returns the text before the second last colon.
func beforePorts(text string) string {
	before := text[:strings.LastIndex(text, ":")]
	return before[:strings.LastIndex(before, ":")]
}

// ParseAddr reads an address of the host. That of IPv4 in IPv6 is one of IPv4.
func ParseAddr(text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	switch {
	case err != nil:
		return netip.Addr{}, errors.New("is not an IP address")
	case addr.Zone() != "":
		return netip.Addr{}, errors.New("has a zone, which no rule can match")
	}
	return addr.Unmap(), nil
}

// ports reads a port, or a range of ports.
func (p parser) ports(part, text string) (first, last uint16, err error) {
	from, to, ranged := strings.Cut(text, "-")
	if first, err = p.port(part, text, from); err != nil || !ranged {
		return first, first, err
	}
	if last, err = p.port(part, text, to); err != nil {
		return 0, 0, err
	}
	if last < first {
		return 0, 0, p.wrong(part, text, "ends before it begins")
	}
	return first, last, nil
}

func (p parser) port(part, whole, text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	switch {
	case err == nil && n == 0 && part == partHost:
		return 0, p.wrong(part, whole, "is not 1 to 65535; leave it out to have one chosen")
	case err != nil || n == 0:
		return 0, p.wrong(part, whole, "is not 1 to 65535, or a range FIRST-LAST of them")
	}
	return uint16(n), nil
}

// Text returns a text that Parse reads as the port. It leaves out the label, and an address
// that is none.
func Text(p record.Port) string {
	var b strings.Builder
	switch addr, err := ParseAddr(p.HostIP); {
	case err != nil:
	case addr.Is6():
		b.WriteString("[" + addr.String() + "]:")
	default:
		b.WriteString(addr.String() + ":")
	}
	if host := uint16(p.HostPort); host != 0 {
		b.WriteString(strconv.Itoa(int(host)))
	}
	b.WriteString(":" + strconv.Itoa(int(uint16(p.ContainerPort))))
	if !slices.Equal(p.Protocols, []string{"tcp"}) && len(p.Protocols) > 0 {
		b.WriteString("/" + strings.Join(p.Protocols, "+"))
	}
	return b.String()
}

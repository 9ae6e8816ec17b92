package ports

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Request is a port of a container that is wanted on the host.
type Request struct {
	Addr      netip.Addr // the zero Addr: all addresses of the host
	Host      uint16     // 0: to be chosen
	Container uint16
	Protocols []string // in lower case, each once
}

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
// The error names the part that is wrong.
func Parse(text string) ([]Request, error) {
	p := parser{text}
	rest, protocols, named := strings.Cut(text, "/")
	one := Request{Protocols: []string{"tcp"}}
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
	one.Addr = addr
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
	var all []Request
	for i := range int(last-first) + 1 {
		r := one
		r.Container = first + uint16(i)
		r.Protocols = slices.Clone(one.Protocols)
		if host != "" {
			r.Host = from + uint16(i)
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

// String returns a text that Parse reads as the request.
func (r Request) String() string {
	var b strings.Builder
	switch {
	case r.Addr.Is6():
		b.WriteString("[" + r.Addr.String() + "]:")
	case r.Addr.IsValid():
		b.WriteString(r.Addr.String() + ":")
	}
	if r.Host != 0 {
		b.WriteString(strconv.Itoa(int(r.Host)))
	}
	b.WriteString(":" + strconv.Itoa(int(r.Container)))
	if !slices.Equal(r.Protocols, []string{"tcp"}) && len(r.Protocols) > 0 {
		b.WriteString("/" + strings.Join(r.Protocols, "+"))
	}
	return b.String()
}

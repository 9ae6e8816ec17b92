package nftrules

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/nft"
)

// parse reads the words of a rule as iptables does after the chain:
//
//	-p tcp --dport 8080 -s 10.1.0.0/16 -j CNI-HOSTPORT-SETMARK
//	-d 10.1.0.2/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
//
// Of each option it takes only the values that the reference plugins use.
func parse(family uint8, words []string) (rule, error) {
	p := parser{family: family, rest: words}
	ok := true
	for ok && len(p.rest) > 0 {
		ok = p.option()
	}
	if !ok || !p.complete() {
		return rule{}, fmt.Errorf("%w: %s", ErrUnknown, iptables.JoinWords(words))
	}
	return p.rule, nil
}

type parser struct {
	rule
	family uint8
	rest   []string

	match string // of "-m", before its option
	jump  string // the value of "-j"
}

// complete finishes the rule. It reports whether nothing is missing.
func (p *parser) complete() bool {
	if p.match != "" || p.jump == "" || p.target.name == "" && needsOption(p.jump) {
		return false
	}
	switch p.jump {
	case "ACCEPT":
		p.verdict.code = verdictAccept
	case "DROP":
		p.verdict.code = verdictDrop
	case "RETURN":
		p.verdict.code = verdictReturn
	case "MASQUERADE":
		p.target = masqueradeTarget(p.family)
	default:
		if p.target.name == "" {
			p.verdict = verdict{verdictJump, p.jump}
		}
	}
	return true
}

func needsOption(target string) bool { return target == "DNAT" || target == "MARK" }

// option reads an option and its value.
func (p *parser) option() bool {
	not := p.rest[0] == "!"
	if not {
		p.rest = p.rest[1:]
	}
	if len(p.rest) < 2 {
		return false
	}
	name, value := p.rest[0], p.rest[1]
	p.rest = p.rest[2:]
	switch name {
	case "-s":
		return p.network(&p.src, value, not)
	case "-d":
		return p.network(&p.dst, value, not)
	case "-i":
		return newDevice(&p.in, value, not)
	case "-o":
		return newDevice(&p.out, value, not)
	}
	return !not && p.plainOption(name, value)
}

// plainOption reads an option that is never negated.
func (p *parser) plainOption(name, value string) bool {
	switch name {
	case "-p":
		known := p.protocol == 0
		p.protocol = protocolNumber(value)
		return known && p.protocol != 0
	case "-m":
		known := p.match == ""
		p.match = value
		return known
	case "-j":
		known := p.jump == "" && isChainName(value)
		p.jump = value
		return known
	case "--to-destination", "--set-xmark":
		return p.targetOption(name, value)
	case "--dport":
		x, ok := p.port(value)
		p.matches = append(p.matches, x)
		return ok
	}
	x, ok := matchOption(p.match, name, value)
	p.matches, p.match = append(p.matches, x), ""
	return ok
}

func (p *parser) network(to *network, value string, not bool) bool {
	prefix, err := netip.ParsePrefix(value)
	if addr, addrErr := netip.ParseAddr(value); addrErr == nil {
		prefix, err = netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	if err != nil || to.IsValid() || nft.FamilyOf(prefix.Addr()) != p.family || prefix.Addr().Zone() != "" {
		return false
	}
	if prefix.Bits() > 0 {
		*to = network{prefix.Masked(), not}
	}
	return prefix.Bits() > 0 || !not // all addresses are no condition
}

func newDevice(to *device, value string, not bool) bool {
	// iptables takes a "+" at the end for any more bytes.
	if *to != (device{}) || value == "" || len(value) >= unix.IFNAMSIZ || strings.HasSuffix(value, "+") {
		return false
	}
	*to = device{value, not}
	return true
}

// port reads the value of --dport. The match that it belongs to is the protocol's,
// with or without "-m tcp" before it.
func (p *parser) port(value string) (extension, bool) {
	port, err := strconv.ParseUint(value, 10, 16)
	x, ok := portMatch(p.protocol, uint16(port))
	if err != nil || !ok || p.match != "" && p.match != x.name {
		return extension{}, false
	}
	p.match = ""
	return x, true
}

func (p *parser) targetOption(name, value string) bool {
	switch {
	case p.target.name != "":
		return false
	case name == "--set-xmark" && p.jump == "MARK":
		mark, mask, ok := marks(value)
		p.target = markTarget(mark, mask)
		return ok
	case name == "--to-destination" && p.jump == "DNAT":
		to, err := netip.ParseAddrPort(value)
		if err != nil || nft.FamilyOf(to.Addr()) != p.family || to.Addr().Zone() != "" || to.Port() == 0 || p.protocol == 0 {
			return false
		}
		p.target = dnatTarget(to)
		return true
	}
	return false
}

// matchOption reads the option of a match that has one.
func matchOption(match, name, value string) (extension, bool) {
	switch match + " " + name {
	case "comment --comment":
		return commentMatch(value), len(value) < mostComment && !strings.Contains(value, "\x00")
	case "conntrack --ctstate":
		return trackedMatch(), value == "RELATED,ESTABLISHED"
	case "addrtype --dst-type":
		return toHostMatch(), value == "LOCAL"
	case "mark --mark":
		mark, mask, ok := marks(value)
		return markMatch(mark, mask), ok
	case "multiport --dports", "multiport --destination-ports":
		ports, ok := portList(value)
		return portsMatch(ports), ok
	}
	return extension{}, false
}

// marks reads "0x2000/0x2000".
func marks(value string) (mark, mask uint32, ok bool) {
	first, second, _ := strings.Cut(value, "/")
	a, errMark := strconv.ParseUint(first, 0, 32)
	b, errMask := strconv.ParseUint(second, 0, 32)
	return uint32(a), uint32(b), errMark == nil && errMask == nil
}

// portList reads "8080,8081".
func portList(value string) (ports []uint16, ok bool) {
	words := strings.Split(value, ",")
	if len(words) > mostPorts {
		return nil, false
	}
	for _, w := range words {
		port, err := strconv.ParseUint(w, 10, 16)
		if err != nil {
			return nil, false
		}
		ports = append(ports, uint16(port))
	}
	return ports, true
}

// protocolNumber returns 0 for a protocol that has no ports.
func protocolNumber(name string) byte {
	switch name {
	case "tcp":
		return unix.IPPROTO_TCP
	case "udp":
		return unix.IPPROTO_UDP
	case "sctp":
		return unix.IPPROTO_SCTP
	}
	return 0
}

// isChainName reports whether a chain of iptables can have the name (XT_EXTENSION_MAXNAMELEN).
func isChainName(name string) bool {
	return name != "" && len(name) < 29 && name[0] != '-' && name[0] != '!' && !strings.ContainsAny(name, " \x00")
}

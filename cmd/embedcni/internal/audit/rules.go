package audit

import (
	"net/netip"
	"regexp"
	"strings"
)

var (
	ofCNI       = regexp.MustCompile(`\bCNI-|\bcni_|\bembedcni\b`)
	namedID     = regexp.MustCompile(`\bid: (?:\\*")?([^"\\, ]+)`)
	namedNet    = regexp.MustCompile(`\b(?:net|name): (?:\\*")?([^"\\, ]+)`)
	namedIf     = regexp.MustCompile(`\bif: ([^"\\, ]+)`)
	portComment = regexp.MustCompile(`^nft rule ip6? cni_hostport .* comment "([^"]+)"$`)
	chainName   = regexp.MustCompile(`\bCNI-(?:DN-|SN-)?[0-9a-f]{21,24}\b`)
	inAddress   = regexp.MustCompile(`[0-9a-fA-F:.]+(?:/\d+)?`)
)

// rule judges a line about a packet filter.
func (a *auditor) rule(line string) {
	if !ofCNI.MatchString(line) || strings.Contains(line, " -A CNI-ADMIN ") {
		return // nor are an administrator's rules in the chain that is his
	}
	f := Finding{Kind: "rule", Object: line, Network: first(namedNet, line), IfName: first(namedIf, line)}
	for _, expr := range []*regexp.Regexp{namedID, portComment} {
		if f.ContainerID = first(expr, line); f.ContainerID != "" {
			a.claim(f)
			return
		}
	}
	for _, chain := range chainName.FindAllString(line, -1) {
		if f.ContainerID = a.chains[chain]; f.ContainerID != "" {
			a.claim(f)
			return
		}
	}
	if id, ok := a.addressed(line); ok {
		f.ContainerID = id
		a.claim(f)
		return
	}
	f.Whose, f.Detail = Nobody, "it is a rule of CNI, and names nothing that a container on record or in libcni's cache has"
	a.add(f)
}

func first(expr *regexp.Regexp, line string) string {
	if m := expr.FindStringSubmatch(line); m != nil {
		return m[1]
	}
	return ""
}

// addressed returns the container of which a line has an address, or a subnet with one. One
// on record comes first.
func (a *auditor) addressed(line string) (id string, ok bool) {
	cached := ""
	for _, text := range inAddress.FindAllString(line, -1) {
		prefix, err := netip.ParsePrefix(text)
		if addr, bare := netip.ParseAddr(text); bare == nil {
			prefix, err = netip.PrefixFrom(addr, addr.BitLen()), nil
		}
		if err != nil || prefix.Bits() == 0 {
			continue
		}
		for addr, id := range a.addresses {
			if prefix.Contains(addr) {
				return id, true
			}
		}
		for id, c := range a.cached {
			for _, addr := range c.addresses {
				if prefix.Contains(addr) {
					cached = id
				}
			}
		}
	}
	return cached, cached != ""
}

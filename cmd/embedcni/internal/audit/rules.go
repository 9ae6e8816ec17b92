package audit

import (
	"cmp"
	"net/netip"
	"regexp"
	"slices"
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
	addresses, id := a.addressed(line)
	for _, expr := range []*regexp.Regexp{namedID, portComment} {
		f.ContainerID = cmp.Or(f.ContainerID, first(expr, line))
	}
	for _, chain := range chainName.FindAllString(line, -1) {
		f.ContainerID = cmp.Or(f.ContainerID, a.hashed[chain])
	}
	if f.ContainerID = cmp.Or(f.ContainerID, id); f.ContainerID == "" {
		f.Detail = "it is a rule of CNI, and names nothing that a container on record or in libcni's cache has"
	}
	a.claim(f, addresses...)
}

func first(expr *regexp.Regexp, line string) string {
	if m := expr.FindStringSubmatch(line); m != nil {
		return m[1]
	}
	return ""
}

// addressed returns the addresses in a line, and the container that has one of them, or one
// in a subnet there. One on record comes first.
func (a *auditor) addressed(line string) (all []netip.Addr, id string) {
	var prefixes []netip.Prefix
	for _, text := range inAddress.FindAllString(line, -1) {
		prefix, err := netip.ParsePrefix(text)
		if addr, bare := netip.ParseAddr(text); bare == nil {
			prefix, err = netip.PrefixFrom(addr, addr.BitLen()), nil
		}
		if err != nil || prefix.Bits() == 0 || everywhere(prefix.Addr()) {
			continue
		}
		if prefixes = append(prefixes, prefix); prefix.IsSingleIP() {
			all = append(all, prefix.Addr())
		}
	}
	within := func(addr netip.Addr) bool {
		return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
	}
	for addr, id := range a.addresses {
		if within(addr) {
			return all, id
		}
	}
	for addr, of := range a.reserved {
		if within(addr) {
			id = max(id, of) // one of them, the same each time
		}
	}
	for of, c := range a.cached {
		if slices.ContainsFunc(c.addresses, within) {
			id = max(id, of)
		}
	}
	return all, id
}

// everywhere reports whether every namespace may have an address, so that it tells nothing.
func everywhere(addr netip.Addr) bool {
	return addr.IsLoopback() || addr.IsLinkLocalUnicast() || addr.IsMulticast() || addr.IsUnspecified()
}

// learn notes of which containers chains are, by the comments of rules that jump to them:
// the rules in the chains do not say it.
func (a *auditor) learn(lines []string) {
	for _, line := range lines {
		id := first(namedID, line)
		for _, chain := range chainName.FindAllString(line, -1) {
			if id != "" {
				a.hashed[chain] = id
			}
		}
	}
}

package netconf

import (
	"bytes"
	"net/netip"
	"regexp"
	"slices"
)

// scanPrefixes returns every address with a prefix length in a text, as a network: of a
// configuration, whatever its plugins and whether it is valid, or of a record. Prefixes
// of routes to everywhere are left out.
func scanPrefixes(text []byte) []netip.Prefix {
	// A pattern in a package variable would be compiled by every program.
	cidr := regexp.MustCompile(`[0-9a-fA-F:.]{2,}\\?/[0-9]{1,3}`)
	var all []netip.Prefix
	for _, found := range cidr.FindAll(text, -1) {
		p, err := netip.ParsePrefix(string(bytes.ReplaceAll(found, []byte(`\/`), []byte("/"))))
		if err == nil && !isEverywhere(p) {
			all = append(all, p.Masked())
		}
	}
	return all
}

// isEverywhere reports whether a prefix is so short that it stands for the internet: the
// default route, its halves, which VPN clients add, and 2000::/3.
func isEverywhere(p netip.Prefix) bool {
	if p.Addr().Is4() {
		return p.Bits() <= 1
	}
	return p.Bits() <= 3
}

// mergePrefixes returns prefixes without duplicates and without those that stand for the
// internet.
func mergePrefixes(lists ...[]netip.Prefix) []netip.Prefix {
	var all []netip.Prefix
	seen := map[netip.Prefix]bool{}
	for _, p := range slices.Concat(lists...) {
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		if p = p.Masked(); p.IsValid() && !isEverywhere(p) && !seen[p] {
			seen[p] = true
			all = append(all, p)
		}
	}
	return all
}

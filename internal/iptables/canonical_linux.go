package iptables

import (
	"net/netip"
	"slices"
	"strings"
)

// Canonical returns the words of a rule in the form of iptables-save of the
// legacy variant: first the rule's own comparisons, then the matches in order,
// then the target. It knows the options that the plugins use. It does not know
// the form of others, such as those in conditions.
func Canonical(args []string) []string {
	var basic = map[string][]string{}
	var matches, target []string
	proto := ""
	for i := 0; i < len(args); i++ {
		negated := args[i] == "!" && i+1 < len(args)
		if negated {
			i++
		}
		n := min(2, len(args)-i) // an option has one value
		switch option := args[i : i+n]; option[0] {
		case "-s", "-d":
			if whole := wholeNetwork(option[n-1]); whole != "" {
				basic[option[0]] = negate(negated, option[0], whole)
			}
		case "-i", "-o":
			basic[option[0]] = negate(negated, option...)
		case "-p":
			proto = option[n-1]
			basic["-p"] = negate(negated, option...)
		case "-j":
			target = slices.Clone(option)
		case "--dport":
			// The protocol's own match, which the rule does not name.
			matches = append(matches, "-m", proto)
			matches = append(matches, option...)
		case "--destination-ports":
			matches = append(matches, "--dports", option[n-1])
		case "--to-destination", "--set-xmark":
			target = append(target, option...)
		default:
			matches = append(matches, negate(negated, option...)...)
		}
		i += n - 1
	}
	return slices.Concat(basic["-s"], basic["-d"], basic["-i"], basic["-o"], basic["-p"], matches, target)
}

func negate(negated bool, words ...string) []string {
	if negated {
		return append([]string{"!"}, words...)
	}
	return slices.Clone(words)
}

// wholeNetwork writes an address, or a network with its prefix length. The
// network of all addresses is left out.
func wholeNetwork(s string) string {
	if a, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(a, a.BitLen()).String()
	}
	if strings.HasSuffix(s, "/0") {
		return ""
	}
	return s
}

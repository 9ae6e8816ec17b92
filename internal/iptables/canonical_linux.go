package iptables

import (
	"net/netip"
	"slices"
	"strings"
)

// Canonical returns the words of a rule as iptables-save of the legacy variant
// writes them: first what the rule compares by itself, then the matches in
// their order, then the target. It knows the options of the plugins; of
// others, as in conditions, it does not know how they are written.
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
			// The protocol's own match, which nobody has named.
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

// wholeNetwork writes an address or a network with its length; the network of
// all addresses is not written at all.
func wholeNetwork(s string) string {
	if a, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(a, a.BitLen()).String()
	}
	if strings.HasSuffix(s, "/0") {
		return ""
	}
	return s
}

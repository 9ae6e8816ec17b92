package netfilter

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// nativeChain is a chain of the native table that is always there.
type nativeChain struct {
	name  string
	hook  *hook
	rules []nativeRule
}

// nativeRule is told from others of its chain by its comment.
type nativeRule struct {
	chain, comment string
	code           code
}

// nativeChains are the chains in the order in which they are made, each after
// those that it jumps to.
//
// No set has verdicts in it, which would spare the rule for each length of
// prefix: the kernel follows all verdicts of a map again with each element that
// is added, so that it would cost more with each container.
func nativeChains() []nativeChain {
	both := func(rule func(family uint8, suffix string) nativeRule) []nativeRule {
		return []nativeRule{rule(familyIPv4, "4"), rule(familyIPv6, "6")}
	}
	var hostports []nativeRule
	for _, set := range []string{"hostips", "hostports"} {
		hostports = append(hostports, both(func(family uint8, suffix string) nativeRule {
			return nativeRule{comment: set + suffix, code: forwardingCode(family, set+suffix, set == "hostips")}
		})...)
	}
	containers := []nativeRule{
		{comment: "multicast4", code: code(nil).family(familyIPv4).
			payload(unix.NFT_PAYLOAD_NETWORK_HEADER, 16, 4, reg(0)).
			mask(reg(0), []byte{0xf0, 0, 0, 0}).compare(reg(0), unix.NFT_CMP_EQ, []byte{224, 0, 0, 0}).accept()},
		{comment: "multicast6", code: code(nil).family(familyIPv6).
			payload(unix.NFT_PAYLOAD_NETWORK_HEADER, 24, 1, reg(0)).compare(reg(0), unix.NFT_CMP_EQ, []byte{0xff}).accept()},
		{comment: "subnets", code: code(nil).jump("subnets")},
		{comment: "masquerade", code: code(nil).masquerade()},
	}
	postrouting := append([]nativeRule{{comment: "hairpin", code: code(nil).translated().jump("hairpin")}},
		both(func(family uint8, suffix string) nativeRule {
			return nativeRule{comment: "containers" + suffix,
				code: code(nil).family(family).source(family, reg(0)).in("containers" + suffix).jump("containers")}
		})...)
	chains := []nativeChain{
		{name: "hostports", rules: hostports},
		{name: "subnets"}, {name: "hairpin"},
		{name: "containers", rules: containers},
		{name: "prerouting", hook: &hookPrerouting, rules: []nativeRule{{comment: "hostports", code: code(nil).toHost().jump("hostports")}}},
		{name: "output", hook: &hookOutput, rules: []nativeRule{{comment: "hostports", code: code(nil).toHost().jump("hostports")}}},
		{name: "postrouting", hook: &hookPostrouting, rules: postrouting},
		{name: "forward", hook: &hookForward, rules: ingressRules()},
	}
	for _, c := range chains {
		for i := range c.rules {
			c.rules[i].chain = c.name
		}
	}
	return chains
}

// forwardingCode is that of the rule for the ports in the map.
//
//	dnat ip to meta l4proto . ip daddr . th dport map @hostips4
//	dnat ip6 to meta l4proto . th dport map @hostports6
func forwardingCode(family uint8, set string, byAddress bool) code {
	size, at := fields{fieldIPv4}.size(), fieldProtocol.size()
	if family == familyIPv6 {
		size = fields{fieldIPv6}.size()
	}
	c := code(nil).family(family).protocol(reg(0))
	if byAddress {
		c = c.destination(family, reg(at))
		at += size
	}
	return c.port(reg(at)).mapped(set).dnat(family, reg(size), 0)
}

// ingressRules are the policies of bridges.
//
//	iifname . oifname @isolated drop
//	iifname . oifname @same_bridge accept
//	iifname @bridges oifname @bridges drop
func ingressRules() []nativeRule {
	between := func() code {
		return code(nil).meta(unix.NFT_META_IIFNAME, reg(0)).meta(unix.NFT_META_OIFNAME, reg(16))
	}
	return []nativeRule{
		{comment: "isolated", code: between().in("isolated").drop()},
		{comment: "same_bridge", code: between().in("same_bridge").accept()},
		{comment: "bridges", code: code(nil).meta(unix.NFT_META_IIFNAME, reg(0)).in("bridges").
			meta(unix.NFT_META_OIFNAME, reg(0)).in("bridges").drop()},
	}
}

// lengthRule is the rule for a set that is for one length of prefix.
//
//	ip saddr . ip daddr & 255.255.255.0 @subnets4_24 accept
//	ip daddr . ip saddr & 255.0.0.0 @hairpin4_8 masquerade
func lengthRule(set string) nativeRule {
	prefix, v6, bits, _ := perLength(set)
	family, size := familyIPv4, fieldIPv4.size()
	if v6 {
		family, size = familyIPv6, fieldIPv6.size()
	}
	container, network := code.source, code.destination
	if prefix == hairpinPrefix {
		container, network = code.destination, code.source
	}
	c := container(code(nil).family(family), family, reg(0))
	if bits > 0 {
		c = network(c, family, reg(size))
	}
	if bits > 0 && bits < 8*size {
		c = c.mask(reg(size), maskOf(bits, size))
	}
	if c = c.in(set); prefix == hairpinPrefix {
		c = c.masquerade()
	} else {
		c = c.accept()
	}
	return nativeRule{chain: prefix, comment: set, code: c}
}

// layout is what there is of the native table, but for elements.
type layout struct {
	sets  map[string]bool
	rules map[string][]string // comments, by chain
}

// missing returns what has to be made first for elements in these sets. The
// error names the first thing.
func (l layout) missing(sets []string) (msgs []message, err error) {
	id := uint32(0)
	set := func(name string) {
		if !l.sets[name] {
			id++
			msgs = append(msgs, newSet(name, id))
			if err == nil {
				err = fmt.Errorf("set %v %s is missing", nativeTable, name)
			}
		}
	}
	for _, name := range fixedSets() {
		set(name)
	}
	chains := l.missingChains(&err)
	if len(msgs) > 0 || len(chains) > 0 {
		msgs = append([]message{newTable(nativeTable, "containers' addresses and host ports, by github.com/embedcni/cni")}, msgs...)
	}
	msgs = append(msgs, chains...)
	for _, name := range l.withExisting(sets) {
		if _, _, _, ok := perLength(name); !ok {
			continue
		}
		set(name)
		if rule := lengthRule(name); !slices.Contains(l.rules[rule.chain], rule.comment) {
			msgs = append(msgs, newRule(nativeTable, rule.chain, rule.code, rule.comment))
			if err == nil {
				err = fmt.Errorf("rule %v %s for set %s is missing", nativeTable, rule.chain, name)
			}
		}
	}
	return msgs, err
}

// withExisting returns the sets, and those that there are of one length, in an
// order that does not change: each has a rule.
func (l layout) withExisting(sets []string) []string {
	all := slices.Clone(sets)
	for name := range l.sets {
		if !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}

// missingChains returns the messages that make a chain and its rules anew,
// which someone has changed.
func (l layout) missingChains(err *error) (msgs []message) {
	for _, c := range nativeChains() {
		there, exists := l.rules[c.name]
		var want []string
		for _, r := range c.rules {
			want = append(want, r.comment)
		}
		perLength := c.rules == nil // which have more rules than these
		if exists && (perLength || slices.Equal(there, want)) {
			continue
		}
		if *err == nil {
			*err = fmt.Errorf("chain %v %s is not as it was made: it has rules %q, want %q", nativeTable, c.name, there, want)
		}
		msgs = append(msgs, newChain(nativeTable, c.name, c.hook, ""))
		if exists {
			msgs = append(msgs, flushChain(nativeTable, c.name))
		}
		for _, r := range c.rules {
			msgs = append(msgs, newRule(nativeTable, r.chain, r.code, r.comment))
		}
	}
	return msgs
}

package netfilter

import (
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/nft"
)

// chain is a chain that a table always has.
type chain struct {
	name  string
	hook  *nft.Hook
	rules []rule
}

// rule is a rule of a table. Its comment identifies it in its chain.
type rule struct {
	chain, comment string
	exprs          nft.Exprs
}

// is reports whether a rule on the host is this one.
func (r rule) is(o nft.Object) bool { return r.comment == o.Comment }

// chainsOf are the chains of a table in the order in which they are made, each after
// those that it jumps to.
//
// No set has verdicts in it, which would spare the rule for each length of
// prefix: the kernel follows all verdicts of a map again with each element that
// is added, so that it would cost more with each container.
func chainsOf(t nft.Table) []chain {
	if t == bridgeTable {
		return []chain{spoofChain()}
	}
	both := func(of func(family uint8, suffix string) rule) []rule {
		return []rule{of(nft.FamilyIPv4, "4"), of(nft.FamilyIPv6, "6")}
	}
	var hostports []rule
	for _, set := range []string{"hostips", "hostports"} {
		hostports = append(hostports, both(func(family uint8, suffix string) rule {
			return rule{comment: set + suffix, exprs: forwardingExprs(family, set+suffix, set == "hostips")}
		})...)
	}
	containers := []rule{
		{comment: "multicast4", exprs: nft.Exprs(nil).Family(nft.FamilyIPv4).
			Payload(unix.NFT_PAYLOAD_NETWORK_HEADER, 16, 4, nft.Reg(0)).
			Mask(nft.Reg(0), []byte{0xf0, 0, 0, 0}).Equal([]byte{224, 0, 0, 0}).Accept()},
		{comment: "multicast6", exprs: nft.Exprs(nil).Family(nft.FamilyIPv6).
			Payload(unix.NFT_PAYLOAD_NETWORK_HEADER, 24, 1, nft.Reg(0)).Equal([]byte{0xff}).Accept()},
		{comment: "subnets", exprs: nft.Exprs(nil).Jump("subnets")},
		{comment: "masquerade", exprs: nft.Exprs(nil).Masquerade()},
	}
	postrouting := append([]rule{{comment: "hairpin", exprs: nft.Exprs(nil).Translated().Jump("hairpin")}},
		both(func(family uint8, suffix string) rule {
			return rule{comment: "containers" + suffix,
				exprs: nft.Exprs(nil).Family(family).Source(family, nft.Reg(0)).In("containers" + suffix).Jump("containers")}
		})...)
	// The priorities are nft's dstnat and srcnat.
	dnat := func(hook uint32) *nft.Hook { return &nft.Hook{Type: "nat", Number: hook, Priority: -100} }
	toHost := []rule{{comment: "hostports", exprs: nft.Exprs(nil).ToHost().Jump("hostports")}}
	return []chain{
		{name: "hostports", rules: hostports},
		{name: "subnets"}, {name: "hairpin"},
		{name: "containers", rules: containers},
		{name: "prerouting", hook: dnat(unix.NF_INET_PRE_ROUTING), rules: toHost},
		{name: "output", hook: dnat(unix.NF_INET_LOCAL_OUT), rules: toHost},
		{name: "postrouting", hook: &nft.Hook{Type: "nat", Number: unix.NF_INET_POST_ROUTING, Priority: 100}, rules: postrouting},
		{name: "forward", hook: &nft.Hook{Type: "filter", Number: unix.NF_INET_FORWARD}, rules: ingressRules()},
	}
}

// spoofChain drops frames with a wrong source address, before anything else sees them.
//
//	iifname . ether saddr @senders accept
//	iifname @ports drop
func spoofChain() chain {
	port := func() nft.Exprs { return nft.Exprs(nil).Meta(unix.NFT_META_IIFNAME, nft.Reg(0)) }
	return chain{
		name: "spoofing",
		hook: &nft.Hook{Type: "filter", Number: 0, Priority: -300}, // NF_BR_PRE_ROUTING, <linux/netfilter_bridge.h>
		rules: []rule{
			// The source address is bytes 6 to 11 of a frame.
			{comment: sendersSet, exprs: port().Payload(unix.NFT_PAYLOAD_LL_HEADER, 6, 6, nft.Reg(16)).In(sendersSet).Accept()},
			{comment: portsSet, exprs: port().In(portsSet).Drop()},
		},
	}
}

// forwardingExprs is that of the rule for the ports in the map.
//
//	dnat ip to meta l4proto . ip daddr . th dport map @hostips4
//	dnat ip6 to meta l4proto . th dport map @hostports6
func forwardingExprs(family uint8, set string, byAddress bool) nft.Exprs {
	size, at := fields{fieldIPv4}.size(), fieldProtocol.size()
	if family == nft.FamilyIPv6 {
		size = fields{fieldIPv6}.size()
	}
	c := nft.Exprs(nil).Family(family).Protocol(nft.Reg(0))
	if byAddress {
		c = c.Destination(family, nft.Reg(at))
		at += size
	}
	return c.Port(nft.Reg(at)).Mapped(set).DNAT(family, nft.Reg(size))
}

// ingressRules are the policies of bridges.
//
//	iifname . oifname @isolated drop
//	iifname . oifname @same_bridge accept
//	iifname @bridges oifname @bridges drop
func ingressRules() []rule {
	between := func() nft.Exprs {
		return nft.Exprs(nil).Meta(unix.NFT_META_IIFNAME, nft.Reg(0)).Meta(unix.NFT_META_OIFNAME, nft.Reg(16))
	}
	return []rule{
		{comment: "isolated", exprs: between().In("isolated").Drop()},
		{comment: "same_bridge", exprs: between().In("same_bridge").Accept()},
		{comment: "bridges", exprs: nft.Exprs(nil).Meta(unix.NFT_META_IIFNAME, nft.Reg(0)).In("bridges").
			Meta(unix.NFT_META_OIFNAME, nft.Reg(0)).In("bridges").Drop()},
	}
}

// lengthRule is the rule for a set that is for one length of prefix.
//
//	ip saddr . ip daddr & 255.255.255.0 @subnets4_24 accept
//	ip daddr . ip saddr & 255.0.0.0 @hairpin4_8 masquerade
func lengthRule(set string) rule {
	prefix, v6, bits, _ := perLength(set)
	family, size := nft.FamilyIPv4, fieldIPv4.size()
	if v6 {
		family, size = nft.FamilyIPv6, fieldIPv6.size()
	}
	container, network := nft.Exprs.Source, nft.Exprs.Destination
	if prefix == hairpinPrefix {
		container, network = nft.Exprs.Destination, nft.Exprs.Source
	}
	c := container(nft.Exprs(nil).Family(family), family, nft.Reg(0))
	if bits > 0 {
		c = network(c, family, nft.Reg(size))
	}
	if bits > 0 && bits < 8*size {
		c = c.Mask(nft.Reg(size), nft.PrefixMask(bits, size))
	}
	if c = c.In(set); prefix == hairpinPrefix {
		c = c.Masquerade()
	} else {
		c = c.Accept()
	}
	return rule{chain: prefix, comment: set, exprs: c}
}

// missing returns the messages that make the missing part of a table that elements in these
// sets of it need. The error names the first missing part.
func (s *state) missing(of nft.Table, names []string) (msgs []nft.Message, first error) {
	lacks := func(format string, args ...any) {
		if first == nil {
			first = fmt.Errorf(format, args...)
		}
	}
	fixed := fixedSets(of)
	sets := fixed
	for _, name := range s.withExisting(names) {
		if _, _, _, ok := perLength(name); ok && of == table {
			in, _ := setOf(name)
			sets = append(sets, in)
		}
	}
	for i, in := range sets {
		if s.sets[in.name] {
			continue
		}
		lacks("set %v %s is missing", of, in.name)
		msgs = append(msgs, nft.NewSet(nft.Set{
			Table: of, Name: in.name,
			KeyType: in.key.typ(), KeySize: uint32(in.key.size()),
			DataType: in.value.typ(), DataSize: uint32(in.value.size()),
			HostByteOrder: slices.Equal(in.key, fields{fieldLink}),
		}, uint32(of.Family)<<8+uint32(i)+1))
	}
	for _, c := range chainsOf(of) {
		if ours, same := s.has(c); !same {
			lacks("chain %v %s is not as it was made: it has rules %q, want %q", of, c.name,
				comments(ours, func(o nft.Object) string { return o.Comment }), comments(c.rules, func(r rule) string { return r.comment }))
			msgs = append(msgs, c.again(of, ours)...)
		}
	}
	for _, in := range sets[len(fixed):] {
		if r := lengthRule(in.name); !slices.ContainsFunc(s.rules[r.chain], r.is) {
			lacks("rule %v %s for set %s is missing", of, r.chain, in.name)
			msgs = append(msgs, nft.NewRule(of, r.chain, r.exprs, r.comment))
		}
	}
	if len(msgs) > 0 {
		msgs = slices.Insert(msgs, 0, nft.NewTable(of, "containers' addresses and host ports, by github.com/embedcni/cni"))
	}
	return msgs, first
}

func comments[T any](all []T, of func(T) string) (texts []string) {
	for _, one := range all {
		texts = append(texts, of(one))
	}
	return texts
}

// withExisting returns the sets, and those that there are, in an order that does not
// change: each of one length has a rule.
func (s *state) withExisting(names []string) []string {
	all := slices.AppendSeq(slices.Clone(names), maps.Keys(s.sets))
	slices.Sort(all)
	return slices.Compact(all)
}

// has reports whether a chain has its rules, and returns those that it has. Rules of others
// stay, before these.
func (s *state) has(c chain) (ours []nft.Object, same bool) {
	all, exists := s.rules[c.name]
	for _, o := range all {
		if slices.ContainsFunc(c.rules, func(r rule) bool { return r.is(o) }) {
			ours = append(ours, o)
		}
	}
	perLength := c.rules == nil // which have more rules than these
	return ours, exists && (perLength || slices.EqualFunc(c.rules, ours, rule.is))
}

// again returns the messages that make a chain again, and its rules instead of these.
func (c chain) again(of nft.Table, instead []nft.Object) []nft.Message {
	msgs := []nft.Message{nft.NewChain(of, c.name, c.hook)}
	for _, o := range instead {
		msgs = append(msgs, o.Deletion())
	}
	for _, r := range c.rules {
		msgs = append(msgs, nft.NewRule(of, c.name, r.exprs, r.comment))
	}
	return msgs
}

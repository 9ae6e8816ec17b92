package native

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/nft"
)

// chain is a chain that the table always has.
type chain struct {
	table nft.Table
	name  string
	hook  *nft.Hook
	rules []rule
}

// rule is a rule of the table. Its comment identifies it in its chain.
type rule struct {
	chain, comment string
	exprs          nft.Exprs
}

// is reports whether a rule on the host is this one.
func (r rule) is(o nft.Object) bool { return r.comment == o.Comment }

func comments(all []nft.Object) (texts []string) {
	for _, o := range all {
		texts = append(texts, o.Comment)
	}
	return texts
}

func wanted(all []rule) (texts []string) {
	for _, r := range all {
		texts = append(texts, r.comment)
	}
	return texts
}

// chains are the chains in the order in which they are made, each after
// those that it jumps to.
//
// No set has verdicts in it, which would spare the rule for each length of
// prefix: the kernel follows all verdicts of a map again with each element that
// is added, so that it would cost more with each container.
func chains() []chain {
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
	all := []chain{
		{name: "hostports", rules: hostports},
		{name: "subnets"}, {name: "hairpin"},
		{name: "containers", rules: containers},
		{name: "prerouting", hook: nft.DestinationNAT(unix.NF_INET_PRE_ROUTING), rules: []rule{{comment: "hostports", exprs: nft.Exprs(nil).ToHost().Jump("hostports")}}},
		{name: "output", hook: nft.DestinationNAT(unix.NF_INET_LOCAL_OUT), rules: []rule{{comment: "hostports", exprs: nft.Exprs(nil).ToHost().Jump("hostports")}}},
		{name: "postrouting", hook: nft.SourceNAT(), rules: postrouting},
		{name: "forward", hook: &nft.Hook{Type: "filter", Number: unix.NF_INET_FORWARD}, rules: ingressRules()},
	}
	for i := range all {
		all[i].table = table
	}
	return append(all, spoofChain())
}

// spoofChain drops frames with a wrong source address, before anything else sees them.
//
//	iifname . ether saddr @senders accept
//	iifname @ports drop
func spoofChain() chain {
	port := func() nft.Exprs { return nft.Exprs(nil).Meta(unix.NFT_META_IIFNAME, nft.Reg(0)) }
	return chain{
		table: bridgeTable, name: "spoofing",
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

// newSet returns the message that makes the set of that name.
func newSet(name string, id uint32) nft.Message {
	kind, _ := kindOf(name)
	return nft.NewSet(nft.Set{
		Table: tableOf(name), Name: name,
		KeyType: kind.key.typ(), KeySize: uint32(kind.key.size()),
		DataType: kind.value.typ(), DataSize: uint32(kind.value.size()),
		HostByteOrder: slices.Equal(kind.key, fields{fieldLink}),
	}, id)
}

// layout holds the existing sets, chains and rules of the table.
type layout struct {
	sets  map[string]bool
	rules map[string][]nft.Object // by chain
}

// missing returns the messages that make the missing part of a table that elements in these
// sets of it need. The error names the first missing part.
func (l layout) missing(of nft.Table, sets []string) (msgs []nft.Message, err error) {
	id := uint32(of.Family) << 8
	set := func(name string) {
		if !l.sets[name] {
			id++
			msgs = append(msgs, newSet(name, id))
			if err == nil {
				err = fmt.Errorf("set %v %s is missing", of, name)
			}
		}
	}
	for _, name := range fixedSets(of) {
		set(name)
	}
	missing := l.missingChains(of, &err)
	if len(msgs) > 0 || len(missing) > 0 {
		msgs = append([]nft.Message{nft.NewTable(of, "containers' addresses and host ports, by github.com/embedcni/cni")}, msgs...)
	}
	msgs = append(msgs, missing...)
	for _, name := range l.withExisting(sets) {
		if _, _, _, ok := perLength(name); !ok || of != table {
			continue
		}
		set(name)
		if r := lengthRule(name); !slices.ContainsFunc(l.rules[r.chain], r.is) {
			msgs = append(msgs, nft.NewRule(table, r.chain, r.exprs, r.comment))
			if err == nil {
				err = fmt.Errorf("rule %v %s for set %s is missing", table, r.chain, name)
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

// missingChains returns the messages that make again the chains of a table that are
// missing, and the rules of those that someone has changed. Rules of others stay, before
// these.
func (l layout) missingChains(of nft.Table, err *error) (msgs []nft.Message) {
	for _, c := range chains() {
		if c.table != of {
			continue
		}
		all, exists := l.rules[c.name]
		ours := slices.DeleteFunc(slices.Clone(all), func(o nft.Object) bool {
			return !slices.ContainsFunc(c.rules, func(r rule) bool { return r.is(o) })
		})
		same := slices.EqualFunc(c.rules, ours, rule.is)
		perLength := c.rules == nil // which have more rules than these
		if exists && (perLength || same) {
			continue
		}
		if *err == nil {
			*err = fmt.Errorf("chain %v %s is not as it was made: it has rules %q, want %q", c.table, c.name, comments(ours), wanted(c.rules))
		}
		msgs = append(msgs, nft.NewChain(c.table, c.name, c.hook))
		for _, o := range ours {
			msgs = append(msgs, o.Deletion())
		}
		for _, r := range c.rules {
			msgs = append(msgs, nft.NewRule(c.table, c.name, r.exprs, r.comment))
		}
	}
	return msgs
}

// kinds returns the sets that are this module's.
func (l layout) kinds() (sets []string) {
	for name := range l.sets {
		if _, ok := kindOf(name); ok {
			sets = append(sets, name)
		}
	}
	return sets
}

// readLayout returns the sets, chains and rules of the tables. If they change meanwhile, it
// returns beside [nft.ErrChanged] what it has seen.
func readLayout(c *nft.Conn, tables []nft.Table) (layout, error) {
	l := layout{sets: make(map[string]bool), rules: make(map[string][]nft.Object)}
	var errs []error
	for _, t := range tables {
		sets, err := c.Sets(t)
		names, chainsErr := c.Chains(t)
		for _, name := range sets {
			l.sets[name] = true
		}
		for _, name := range names {
			l.rules[name] = nil
		}
		errs = append(errs, err, chainsErr, c.Rules(t, "", nil, func(r nft.Rule) error {
			l.rules[r.Chain] = append(l.rules[r.Chain], r.Object(t))
			return nil
		}))
	}
	for _, err := range errs {
		if err != nil && !errors.Is(err, nft.ErrChanged) {
			return l, fmt.Errorf("look at table %v: %w", table, err)
		}
	}
	return l, errors.Join(errs...)
}

// elementsOn returns those of the elements that have one of the keys, and all of the sets,
// like [nft.Conn.Elements], from both tables.
func elementsOn(c *nft.Conn, keys []element, sets []string) (all []element, changed error) {
	for _, t := range tablesOf(append(setsOf(keys), sets...)) {
		some := slices.DeleteFunc(slices.Clone(keys), func(k element) bool { return tableOf(k.Set) != t })
		whole := slices.DeleteFunc(slices.Clone(sets), func(set string) bool { return tableOf(set) != t })
		found, err := c.Elements(t, some, whole)
		if changed = errors.Join(changed, err); err != nil && !errors.Is(err, nft.ErrChanged) {
			return nil, fmt.Errorf("look at table %v: %w", t, err)
		}
		all = append(all, found...)
	}
	return all, changed
}

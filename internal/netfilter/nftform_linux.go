package netfilter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// nftForm is the writer for [NFTables]: the rules that the reference plugins
// make, one for each address and port, in their tables.
type nftForm struct{ *socket }

func (nftForm) over(s *socket) writer { return nftForm{s} }

// The tables and chains of the plugins, of pkg/ip/ipmasq_nftables_linux.go and
// portmap_nftables.go.
const (
	tableMasquerade = "cni_plugins_masquerade"
	tableHostport   = "cni_hostport"

	chainChecks       = "masq_checks"
	chainHostports    = "hostports"
	chainOldHostports = "hostip_hostports"
	chainAllHostports = "hostports_all"
	chainMasquerading = "masquerading"
)

// formRule is a rule of an attachment.
type formRule struct {
	table          nftTable
	chain, comment string
	code           code
	// values are what the rule compares with and loads, in order, by which it
	// is known again: the rest of how nft writes it depends on its version.
	values [][]byte
}

// is tells whether r, which has these constants, is the rule.
func (f formRule) is(r nftRule, constants []byte) bool {
	if r.chain != f.chain || r.comment != f.comment {
		return false
	}
	for _, v := range f.values {
		i := bytes.Index(constants, v)
		if i < 0 {
			return false
		}
		constants = constants[i+len(v):]
	}
	return true
}

// formRules returns the rules in order.
func formRules(r Rules) ([]formRule, error) {
	var all []formRule
	for _, m := range r.Masquerade {
		some, err := m.formRules()
		if err != nil {
			return nil, fmt.Errorf("masquerade: %w", err)
		}
		all = append(all, some...)
	}
	for _, h := range r.HostPorts {
		some, err := h.formRules()
		if err != nil {
			return nil, fmt.Errorf("host ports: %w", err)
		}
		all = append(all, some...)
	}
	if len(r.Forward) > 0 {
		return nil, fmt.Errorf("firewall: the plugin has no form of nftables: %w", errOnlyIPTables)
	}
	return all, nil
}

// formRules of a masquerade.
//
//	ip saddr 10.1.0.2 ip daddr != 10.1.0.0/24 masquerade comment "…"
func (m Masquerade) formRules() ([]formRule, error) {
	if err := m.validate(); err != nil {
		return nil, err
	}
	var all []formRule
	for _, p := range m.Addresses {
		p, err := plainPrefix(p)
		if err != nil {
			return nil, err
		}
		family, addr := familyOf(p.Addr()), p.Addr()
		offset := uint32(16)
		if family == familyIPv6 {
			offset = 24
		}
		c := code(nil).family(family).source(family, reg(0)).compare(reg(0), unix.NFT_CMP_EQ, addr.AsSlice()).
			within(offset, unix.NFT_CMP_NEQ, p).masquerade()
		all = append(all, formRule{
			nftTable{familyInet, tableMasquerade}, chainChecks, m.comment(), c,
			[][]byte{addr.AsSlice(), p.Masked().Addr().AsSlice()[:p.Bits()/8]},
		})
	}
	return all, nil
}

func (h HostPorts) formRules() ([]formRule, error) {
	if err := h.validate(); err != nil {
		return nil, err
	}
	if len(h.ContainerID) > longestComment {
		return nil, fmt.Errorf("a container ID of %d bytes: portmap has it as a comment of nftables, which takes %d", len(h.ContainerID), longestComment)
	}
	if h.ExternalSetMarkChain != "" {
		return nil, fmt.Errorf("externalSetMarkChain: %w", errOnlyIPTables)
	}
	var all []formRule
	for _, to := range []netip.Prefix{h.V4, h.V6} {
		if to == (netip.Prefix{}) {
			continue
		}
		to, err := plainPrefix(to)
		if err != nil {
			return nil, err
		}
		for _, p := range h.Ports {
			rule, ok, err := h.portRule(p, to.Addr())
			if err != nil {
				return nil, err
			}
			if ok {
				all = append(all, rule)
			}
		}
		if h.SNAT {
			all = append(all, h.returnRules(to.Addr())...)
		}
	}
	return all, nil
}

// portRule is that for a port.
//
//	ip daddr 192.0.2.1 tcp dport 8080 dnat to 10.1.0.2:80 comment "c1"
func (h HostPorts) portRule(p HostPort, to netip.Addr) (formRule, bool, error) {
	key, ok, err := p.key(to.Is4())
	if err != nil || !ok {
		return formRule{}, false, err
	}
	family, c := familyOf(to), code(nil)
	protocol, host, target := []byte(key.key[:1]), []byte(keyPort(p.HostPort)[:2]), []byte(keyPort(p.ContainerPort)[:2])
	var values [][]byte
	if ip := p.HostIP.Unmap().WithZone(""); ip.IsValid() && !ip.IsUnspecified() {
		c = c.destination(family, reg(0)).compare(reg(0), unix.NFT_CMP_EQ, ip.AsSlice())
		values = append(values, ip.AsSlice())
	}
	values = append(values, protocol, host, to.AsSlice(), target)
	const withPort = 2 // NF_NAT_RANGE_PROTO_SPECIFIED
	c = c.protocol(reg(0)).compare(reg(0), unix.NFT_CMP_EQ, protocol).
		port(reg(0)).compare(reg(0), unix.NFT_CMP_EQ, host).
		load(reg(0), to.AsSlice()).load(reg(16), target).dnat(family, reg(16), withPort)
	return formRule{nftTable{family, tableHostport}, chainHostports, h.ContainerID, c, values}, true, nil
}

// returnRules masquerade what would come back past the host.
//
//	ip saddr 10.1.0.2 ip daddr 10.1.0.2 masquerade comment "c1"
//	ip saddr 127.0.0.1 ip daddr 10.1.0.2 masquerade comment "c1"
//
// For all that goes to a forwarded port the plugins have no rule:
//
//	ct status dnat ip daddr 10.1.0.2 masquerade comment "c1"
func (h HostPorts) returnRules(to netip.Addr) []formRule {
	family, addr := familyOf(to), to.AsSlice()
	rule := func(c code, values ...[]byte) formRule {
		return formRule{nftTable{family, tableHostport}, chainMasquerading, h.ContainerID, c.masquerade(), values}
	}
	from := func(source []byte) formRule {
		c := code(nil).source(family, reg(0)).compare(reg(0), unix.NFT_CMP_EQ, source).
			destination(family, reg(0)).compare(reg(0), unix.NFT_CMP_EQ, addr)
		return rule(c, slices.Concat(source, addr))
	}
	all := []formRule{from(addr)}
	if to.Is4() {
		all = append(all, from([]byte{127, 0, 0, 1}))
	}
	if h.MasqAll {
		c := code(nil).translated().destination(family, reg(0)).compare(reg(0), unix.NFT_CMP_EQ, addr)
		all = append(all, rule(c, addr))
	}
	return all
}

// add appends the rules in one transaction. Those that are there already are
// not looked for, as a listing grows with every container; a second copy does
// no harm, and remove deletes it with the first.
func (n nftForm) add(ctx context.Context, r Rules) error {
	rules, err := formRules(r)
	if err != nil || len(rules) == 0 {
		return err
	}
	base, err := formBase(r)
	if err != nil {
		return err
	}
	var msgs []message
	for _, rule := range rules {
		msgs = append(msgs, newRule(rule.table, rule.chain, rule.code, rule.comment))
	}
	if !base.always {
		if err = n.transact(msgs, nil); err == nil {
			return nil
		}
		if !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("nftables: %w", err)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	if err := n.transact(append(base.messages(rules), msgs...), nil); err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	return nil
}

// remove deletes the rules with the owner's comment, and of portmap's only those
// for the address, where one is known: its comment is the container's ID, which
// is the same for all of the container's networks. It takes one transaction.
func (n nftForm) remove(ctx context.Context, r Rules) error {
	owned := formOwned(r)
	for i := range owned {
		owned[i].others = siblingsOf(ctx).Addresses
	}
	return untilUnchanged(ctx, func() error {
		objects, generation, err := n.find(owned)
		if errors.Is(err, errNoNFTables) || err == nil && len(objects) == 0 {
			return nil
		}
		if err == nil {
			err = n.socket.remove(ctx, generation, objects)
		}
		if err != nil {
			return fmt.Errorf("nftables: %w", err)
		}
		return nil
	})
}

// find returns the rules that are the owners', and the generation.
func (n nftForm) find(owned []formOwner) (objects []nftObject, generation uint32, err error) {
	if generation, err = n.generation(); err != nil {
		return nil, 0, err
	}
	for _, o := range owned {
		for _, chain := range o.chains {
			err := n.rules(o.table, chain, func(comment string) bool { return o.comments[comment] }, func(r nftRule, _ []byte) {
				object := nftObject{o.table, r.chain, r.handle, r.comment}
				addr, known := o.addrs[r.comment]
				mine := known && slices.Contains(r.addrs, addr) || !known && !r.has(o.others)
				if mine && !slices.Contains(objects, object) {
					objects = append(objects, object)
				}
			})
			if err != nil {
				return nil, 0, err
			}
		}
	}
	return objects, generation, nil
}

// formOwner tells which rules of a table are the owners'.
type formOwner struct {
	table    nftTable
	chains   []string
	comments map[string]bool
	addrs    map[string]netip.Addr // by comment: the rule must have it
	others   []netip.Addr          // if no address is known, the rule must have none of these
}

// has reports whether the rule has one of the addresses.
func (r nftRule) has(addrs []netip.Addr) bool {
	return slices.ContainsFunc(r.addrs, func(a netip.Addr) bool { return slices.Contains(addrs, a) })
}

func formOwned(r Rules) []formOwner {
	var all []formOwner
	if len(r.Masquerade) > 0 {
		o := formOwner{table: nftTable{familyInet, tableMasquerade}, chains: []string{chainChecks}, comments: make(map[string]bool)}
		for _, m := range r.Masquerade {
			o.comments[m.comment()] = true
		}
		all = append(all, o)
	}
	for _, h := range r.HostPorts {
		for _, family := range []uint8{familyIPv4, familyIPv6} {
			o := formOwner{
				table: nftTable{family, tableHostport}, chains: []string{chainHostports, chainOldHostports, chainMasquerading},
				comments: map[string]bool{h.ContainerID: true},
			}
			if h.V4.IsValid() || h.V6.IsValid() {
				addr := map[uint8]netip.Addr{familyIPv4: h.V4.Addr().Unmap(), familyIPv6: h.V6.Addr()}[family]
				o.addrs = map[string]netip.Addr{h.ContainerID: addr}
			}
			all = append(all, o)
		}
	}
	return all
}

// check looks for each rule, and for those that lead to it.
func (n nftForm) check(ctx context.Context, r Rules) error {
	wanted, err := formRules(r)
	if err != nil || len(wanted) == 0 {
		return err
	}
	base, err := formBase(r)
	if err != nil {
		return err
	}
	wanted = append(wanted, base.rules(wanted)...)
	return untilUnchanged(ctx, func() error { return n.checkRules(wanted) })
}

func (n nftForm) checkRules(wanted []formRule) error {
	type found struct {
		nftRule
		constants []byte
	}
	comments := map[string]bool{}
	for _, rule := range wanted {
		comments[rule.comment] = true // the fixed rules have none
	}
	wantedComment := func(comment string) bool { return comments[comment] }
	there := make(map[nftTable][]found)
	for _, rule := range wanted {
		if _, listed := there[rule.table]; listed {
			continue
		}
		there[rule.table] = nil
		if err := n.rules(rule.table, "", wantedComment, func(r nftRule, answer []byte) {
			there[rule.table] = append(there[rule.table], found{r, constants(answer)})
		}); err != nil {
			return fmt.Errorf("nftables: %w", err)
		}
	}
	for _, rule := range wanted {
		// What is found once does not stand for two.
		i := slices.IndexFunc(there[rule.table], func(f found) bool { return rule.is(f.nftRule, f.constants) })
		if i < 0 {
			return fmt.Errorf("nftables: rule %v %s is missing, with comment %q and values %x", rule.table, rule.chain, rule.comment, rule.values)
		}
		there[rule.table] = slices.Delete(there[rule.table], i, i+1)
	}
	return nil
}

// constants are what a rule compares with and loads, one after the other, and
// the names of chains that it jumps to.
func constants(answer []byte) (all []byte) {
	eachAttribute(answer[min(netfilterHeader, len(answer)):], func(typ uint16, list []byte) {
		if typ != unix.NFTA_RULE_EXPRESSIONS {
			return
		}
		eachAttribute(list, func(_ uint16, expr []byte) {
			name := ""
			eachAttribute(expr, func(typ uint16, data []byte) {
				if typ == unix.NFTA_EXPR_NAME {
					name = readString(data)
				}
				if typ == unix.NFTA_EXPR_DATA {
					all = append(all, constantsOf(name, data)...)
				}
			})
		})
	})
	return all
}

func constantsOf(expr string, data []byte) (all []byte) {
	holder := map[string]uint16{"cmp": unix.NFTA_CMP_DATA, "immediate": unix.NFTA_IMMEDIATE_DATA}[expr]
	eachAttribute(data, func(typ uint16, data []byte) {
		if holder == 0 || typ != holder {
			return
		}
		eachAttribute(data, func(typ uint16, data []byte) {
			if typ == unix.NFTA_DATA_VALUE {
				all = append(all, data...)
				return
			}
			eachAttribute(data, func(typ uint16, data []byte) {
				if typ == unix.NFTA_VERDICT_CHAIN {
					all = append(all, readString(data)...)
				}
			})
		})
	})
	return all
}

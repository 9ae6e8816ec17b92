package netfilter

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// formTables is what the attachments' rules in the plugins' tables need there.
type formTables struct {
	conditions map[uint8]condition // by family
	snat       bool
	// always: the rules that are for all are made anew even if they are there,
	// as their conditions may be others.
	always bool
}

func formBase(r Rules) (formTables, error) {
	base := formTables{conditions: make(map[uint8]condition)}
	for _, h := range r.HostPorts {
		base.snat = base.snat || h.SNAT
		for _, c := range []struct {
			family uint8
			field  string
			words  []string
		}{{familyIPv4, "conditionsV4", h.ConditionsV4}, {familyIPv6, "conditionsV6", h.ConditionsV6}} {
			if len(c.words) == 0 {
				continue
			}
			parsed, err := parseCondition(c.family, c.words)
			if err != nil {
				return base, fmt.Errorf("host ports: %s: %w", c.field, err)
			}
			base.conditions[c.family], base.always = parsed, true
		}
	}
	return base, nil
}

// messages make the tables, chains and fixed rules that the rules need, if they
// are missing. The fixed rules are made anew, as the plugins do.
func (f formTables) messages(rules []formRule) (msgs []message) {
	for _, table := range tablesOf(rules) {
		if table.name == tableMasquerade {
			msgs = append(msgs,
				newTable(table, "Masquerading for plugins from github.com/containernetworking/plugins"),
				newChain(table, chainChecks, nil, "Masquerade traffic from certain IPs to any (non-multicast) IP outside their subnet"),
				newChain(table, "postrouting", &hookPostrouting, ""),
				flushChain(table, "postrouting"))
		} else {
			msgs = append(msgs,
				newTable(table, "CNI portmap plugin"),
				newChain(table, chainHostports, nil, ""),
				newChain(table, chainOldHostports, nil, ""),
				newChain(table, chainAllHostports, nil, ""),
				flushChain(table, chainAllHostports),
				newChain(table, "prerouting", &hookPrerouting, ""),
				flushChain(table, "prerouting"),
				newChain(table, "output", &hookOutput, ""),
				flushChain(table, "output"))
			if f.snat {
				msgs = append(msgs, newChain(table, chainMasquerading, &hookPostrouting, ""))
			}
		}
		for _, r := range f.fixed(table) {
			msgs = append(msgs, newRule(table, r.chain, r.code, ""))
		}
	}
	return msgs
}

// rules are the fixed rules of the tables that the rules are in.
func (f formTables) rules(rules []formRule) (fixed []formRule) {
	for _, table := range tablesOf(rules) {
		fixed = append(fixed, f.fixed(table)...)
	}
	return fixed
}

func tablesOf(rules []formRule) (tables []nftTable) {
	for _, r := range rules {
		if !slices.Contains(tables, r.table) {
			tables = append(tables, r.table)
		}
	}
	return tables
}

// fixed are the rules of a table that are for all containers.
//
//	ip daddr 224.0.0.0/4 return
//	ip6 daddr ff00::/8 return
//	goto masq_checks
//
//	jump hostip_hostports
//	jump hostports
//	fib daddr type local jump hostports_all
func (f formTables) fixed(table nftTable) []formRule {
	rule := func(chain string, c code, values ...[]byte) formRule {
		return formRule{table: table, chain: chain, code: c, values: values}
	}
	if table.name == tableMasquerade {
		return []formRule{
			rule("postrouting", code(nil).family(familyIPv4).payload(unix.NFT_PAYLOAD_NETWORK_HEADER, 16, 4, reg(0)).
				mask(reg(0), []byte{0xf0, 0, 0, 0}).compare(reg(0), unix.NFT_CMP_EQ, []byte{224, 0, 0, 0}).
				verdict(unix.NFT_RETURN, ""), []byte{224, 0, 0, 0}),
			rule("postrouting", code(nil).family(familyIPv6).payload(unix.NFT_PAYLOAD_NETWORK_HEADER, 24, 1, reg(0)).
				compare(reg(0), unix.NFT_CMP_EQ, []byte{0xff}).verdict(unix.NFT_RETURN, ""), []byte{familyIPv6, 0xff}),
			rule("postrouting", code(nil).verdict(unix.NFT_GOTO, chainChecks), []byte(chainChecks)),
		}
	}
	condition := f.conditions[table.family]
	entry := slices.Concat(condition.code, code(nil).toHost().jump(chainAllHostports))
	values := append(slices.Clone(condition.values), []byte(chainAllHostports))
	return []formRule{
		rule(chainAllHostports, code(nil).jump(chainOldHostports), []byte(chainOldHostports)),
		rule(chainAllHostports, code(nil).jump(chainHostports), []byte(chainHostports)),
		rule("prerouting", entry, values...),
		rule("output", entry, values...),
	}
}

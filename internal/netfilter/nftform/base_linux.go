package nftform

import (
	"bytes"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/nft"
)

// base describes the parts of the plugins' tables that the attachments' rules need.
type base struct {
	conditions map[uint8]condition // by family
	snat       bool
	// always makes the fixed rules again even if they exist, as their conditions may
	// differ.
	always bool
}

func baseOf(r fwrules.Rules) (base, error) {
	base := base{conditions: make(map[uint8]condition)}
	for _, h := range r.HostPorts {
		base.snat = base.snat || h.SNAT
		for _, c := range []struct {
			family uint8
			field  string
			words  []string
		}{{nft.FamilyIPv4, "conditionsV4", h.ConditionsV4}, {nft.FamilyIPv6, "conditionsV6", h.ConditionsV6}} {
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

// messages returns the messages that make the missing tables and chains that the
// rules need. They make the fixed rules again, as the plugins do.
func (f base) messages(rules []wantedRule) (msgs []nft.Message) {
	for _, table := range tablesOf(rules) {
		msgs = append(msgs, f.objects(table)...)
		fixed := f.fixed(table)
		for i, r := range fixed {
			if i == 0 || fixed[i-1].chain != r.chain {
				msgs = append(msgs, nft.FlushChain(table, r.chain))
			}
		}
		for _, r := range fixed {
			msgs = append(msgs, nft.NewRule(table, r.chain, r.exprs, ""))
		}
	}
	return msgs
}

// objects returns the messages that make a table and its chains, if they are missing.
func (f base) objects(table nft.Table) []nft.Message {
	if table.Name == tableMasquerade {
		return []nft.Message{
			nft.NewTable(table, "Masquerading for plugins from github.com/containernetworking/plugins"),
			nft.NewChain(table, chainChecks, nil, "Masquerade traffic from certain IPs to any (non-multicast) IP outside their subnet"),
			nft.NewChain(table, "postrouting", nft.SourceNAT(), ""),
		}
	}
	msgs := []nft.Message{
		nft.NewTable(table, "CNI portmap plugin"),
		nft.NewChain(table, chainHostports, nil, ""),
		nft.NewChain(table, chainOldHostports, nil, ""),
		nft.NewChain(table, chainAllHostports, nil, ""),
		nft.NewChain(table, "prerouting", nft.DestinationNAT(unix.NF_INET_PRE_ROUTING), ""),
		nft.NewChain(table, "output", nft.DestinationNAT(unix.NF_INET_LOCAL_OUT), ""),
	}
	if f.snat {
		msgs = append(msgs, nft.NewChain(table, chainMasquerading, nft.SourceNAT(), ""))
	}
	return msgs
}

func tablesOf(rules []wantedRule) (tables []nft.Table) {
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
func (f base) fixed(table nft.Table) []wantedRule {
	rule := func(chain string, c nft.Exprs, values ...[]byte) wantedRule {
		return wantedRule{table: table, chain: chain, exprs: c, values: values}
	}
	if table.Name == tableMasquerade {
		return []wantedRule{
			rule("postrouting", nft.Exprs(nil).Family(nft.FamilyIPv4).Payload(unix.NFT_PAYLOAD_NETWORK_HEADER, 16, 4, nft.Reg(0)).
				Mask(nft.Reg(0), []byte{0xf0, 0, 0, 0}).Equal([]byte{224, 0, 0, 0}).
				Return(), []byte{224, 0, 0, 0}),
			rule("postrouting", nft.Exprs(nil).Family(nft.FamilyIPv6).Payload(unix.NFT_PAYLOAD_NETWORK_HEADER, 24, 1, nft.Reg(0)).
				Equal([]byte{0xff}).Return(), []byte{nft.FamilyIPv6, 0xff}),
			rule("postrouting", nft.Exprs(nil).Verdict(unix.NFT_GOTO, chainChecks), []byte(chainChecks)),
		}
	}
	condition := f.conditions[table.Family]
	entry := slices.Concat(condition.exprs, nft.Exprs(nil).ToHost().Jump(chainAllHostports))
	values := append(slices.Clone(condition.values), []byte(chainAllHostports))
	return []wantedRule{
		rule(chainAllHostports, nft.Exprs(nil).Jump(chainOldHostports), []byte(chainOldHostports)),
		rule(chainAllHostports, nft.Exprs(nil).Jump(chainHostports), []byte(chainHostports)),
		rule("prerouting", entry, values...),
		rule("output", entry, values...),
	}
}

// leads reports whether a fixed rule precedes the others of its chain.
func (f base) leads(rule wantedRule) bool {
	fixed := f.fixed(rule.table)
	last := 0
	for i, r := range fixed {
		if r.chain == rule.chain {
			last = i
		}
	}
	return !bytes.Equal(fixed[last].exprs, rule.exprs)
}

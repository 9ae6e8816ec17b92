package nftform

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/nft"
)

// Form adds, checks, finds and deletes the rules for [fwrules.NFTables].
type Form struct {
	Sockets  nft.Sockets
	Siblings func() fwrules.Siblings // called only if they matter
	fake     ruleTable               // of tests: instead of the kernel
}

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

// wantedRule is a rule of an attachment.
type wantedRule struct {
	table          nft.Table
	chain, comment string
	exprs          nft.Exprs
	// values are the constants of the rule in order. They identify the rule: the
	// other parts depend on the version of nft that compiled it.
	values [][]byte
}

func (f wantedRule) is(r foundRule) bool {
	if r.chain != f.chain || r.comment != f.comment {
		return false
	}
	for _, v := range f.values {
		i := bytes.Index(r.constants, v)
		if i < 0 {
			return false
		}
		r.constants = r.constants[i+len(v):]
	}
	return true
}

// rulesOf returns the rules in order.
func rulesOf(r fwrules.Rules) ([]wantedRule, error) {
	var all []wantedRule
	for _, m := range r.Masquerade {
		some, err := masqueradeRules(m)
		if err != nil {
			return nil, fmt.Errorf("masquerade: %w", err)
		}
		all = append(all, some...)
	}
	for _, h := range r.HostPorts {
		some, err := hostPortRules(h)
		if err != nil {
			return nil, fmt.Errorf("host ports: %w", err)
		}
		all = append(all, some...)
	}
	if len(r.Forward) > 0 {
		return nil, fmt.Errorf("firewall: the plugin has no form of nftables: %w", fwrules.ErrOnlyIPTables)
	}
	return all, nil
}

// masqueradeRules returns the rules for a container's addresses.
//
//	ip saddr 10.1.0.2 ip daddr != 10.1.0.0/24 masquerade comment "…"
func masqueradeRules(m fwrules.Masquerade) ([]wantedRule, error) {
	if err := m.Validate(); err != nil {
		return nil, err
	}
	var all []wantedRule
	for _, p := range m.Addresses {
		p, err := fwrules.PlainPrefix(p)
		if err != nil {
			return nil, err
		}
		family, addr := nft.FamilyOf(p.Addr()), p.Addr()
		offset := uint32(16)
		if family == nft.FamilyIPv6 {
			offset = 24
		}
		c := nft.Exprs(nil).Family(family).Source(family, nft.Reg(0)).Equal(addr.AsSlice()).
			Within(offset, unix.NFT_CMP_NEQ, p).Masquerade()
		all = append(all, wantedRule{
			nft.Table{Family: nft.FamilyInet, Name: tableMasquerade}, chainChecks, m.Comment(), c,
			[][]byte{addr.AsSlice(), p.Masked().Addr().AsSlice()[:p.Bits()/8]},
		})
	}
	return all, nil
}

// hostPortRules returns the rules for a container's ports.
func hostPortRules(h fwrules.HostPorts) ([]wantedRule, error) {
	if err := h.Validate(); err != nil {
		return nil, err
	}
	if len(h.ContainerID) > nft.LongestComment {
		return nil, fmt.Errorf("a container ID of %d bytes: portmap has it as a comment of nftables, which takes %d", len(h.ContainerID), nft.LongestComment)
	}
	if h.ExternalSetMarkChain != "" {
		return nil, fmt.Errorf("externalSetMarkChain: %w", fwrules.ErrOnlyIPTables)
	}
	var all []wantedRule
	for _, to := range []netip.Prefix{h.V4, h.V6} {
		if to == (netip.Prefix{}) {
			continue
		}
		to, err := fwrules.PlainPrefix(to)
		if err != nil {
			return nil, err
		}
		for _, p := range h.Ports {
			rule, ok, err := portRule(h, p, to.Addr())
			if err != nil {
				return nil, err
			}
			if ok {
				all = append(all, rule)
			}
		}
		if h.SNAT {
			all = append(all, returnRules(h, to.Addr())...)
		}
	}
	return all, nil
}

// portRule returns the rule for a port.
//
//	ip daddr 192.0.2.1 tcp dport 8080 dnat to 10.1.0.2:80 comment "c1"
func portRule(h fwrules.HostPorts, p fwrules.HostPort, to netip.Addr) (wantedRule, bool, error) {
	ip, number, ok, err := p.Match(to.Is4())
	if err != nil || !ok {
		return wantedRule{}, false, err
	}
	family, c, protocol := nft.FamilyOf(to), nft.Exprs(nil), []byte{number}
	host, target := binary.BigEndian.AppendUint16(nil, p.HostPort), binary.BigEndian.AppendUint16(nil, p.ContainerPort)
	var values [][]byte
	if ip.IsValid() {
		c = c.Destination(family, nft.Reg(0)).Equal(ip.AsSlice())
		values = append(values, ip.AsSlice())
	}
	values = append(values, protocol, host, to.AsSlice(), target)
	const withPort = 2 // NF_NAT_RANGE_PROTO_SPECIFIED
	c = c.Protocol(nft.Reg(0)).Equal(protocol).
		Port(nft.Reg(0)).Equal(host).
		Load(nft.Reg(0), to.AsSlice()).Load(nft.Reg(16), target).DNAT(family, nft.Reg(16), withPort)
	return wantedRule{nft.Table{Family: family, Name: tableHostport}, chainHostports, h.ContainerID, c, values}, true, nil
}

// returnRules masquerade packets whose replies would bypass the host.
//
//	ip saddr 10.1.0.2 ip daddr 10.1.0.2 masquerade comment "c1"
//	ip saddr 127.0.0.1 ip daddr 10.1.0.2 masquerade comment "c1"
//
// For all that goes to a forwarded port the plugins have no rule:
//
//	ct status dnat ip daddr 10.1.0.2 masquerade comment "c1"
func returnRules(h fwrules.HostPorts, to netip.Addr) []wantedRule {
	family, addr := nft.FamilyOf(to), to.AsSlice()
	rule := func(c nft.Exprs, values ...[]byte) wantedRule {
		return wantedRule{nft.Table{Family: family, Name: tableHostport}, chainMasquerading, h.ContainerID, c.Masquerade(), values}
	}
	from := func(source []byte) wantedRule {
		c := nft.Exprs(nil).Source(family, nft.Reg(0)).Equal(source).
			Destination(family, nft.Reg(0)).Equal(addr)
		return rule(c, slices.Concat(source, addr))
	}
	all := []wantedRule{from(addr)}
	if to.Is4() {
		all = append(all, from([]byte{127, 0, 0, 1}))
	}
	if h.MasqAll {
		c := nft.Exprs(nil).Translated().Destination(family, nft.Reg(0)).Equal(addr)
		all = append(all, rule(c, addr))
	}
	return all
}

// Add appends the rules in one transaction. It does not look for existing copies, as
// a listing grows with every container; a second copy does no harm, and Remove
// deletes it with the first.
func (f Form) Add(ctx context.Context, r fwrules.Rules) error {
	rules, err := rulesOf(r)
	if err != nil || len(rules) == 0 {
		return err
	}
	base, err := baseOf(r)
	if err != nil {
		return err
	}
	var msgs []nft.Message
	for _, rule := range rules {
		msgs = append(msgs, nft.NewRule(rule.table, rule.chain, rule.exprs, rule.comment))
	}
	return f.Sockets.Do(ctx, func(c *nft.Conn) error {
		if !base.always {
			err := c.Transact(msgs, nil)
			if err == nil || !errors.Is(err, unix.ENOENT) {
				return wrap(err)
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
		return wrap(c.Transact(append(base.messages(rules), msgs...), nil))
	})
}

func wrap(err error) error {
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	return nil
}

// Remove deletes the rules with the owner's comment, in one transaction.
func (f Form) Remove(ctx context.Context, r fwrules.Rules) error {
	return f.onRules(ctx, func(k ruleTable) error {
		return removeFound(ctx, k, searchesOf(r, f.Siblings().Addresses)...)
	})
}

// searchesOf describes the rules of r. The addresses of others are those of
// siblings, which matter if r's are not known.
func searchesOf(r fwrules.Rules, others []netip.Addr) (all []search) {
	var comments []string
	for _, m := range r.Masquerade {
		comments = append(comments, m.Comment())
	}
	if len(comments) > 0 {
		all = append(all, masqueradeSearch(comments...))
	}
	for _, h := range r.HostPorts {
		v4, v6 := h.V4.Addr().Unmap(), h.V6.Addr()
		if v4.IsValid() || !v6.IsValid() {
			all = append(all, hostPortSearch(nft.FamilyIPv4, h.ContainerID, v4, others))
		}
		if v6.IsValid() || !v4.IsValid() {
			all = append(all, hostPortSearch(nft.FamilyIPv6, h.ContainerID, v6, others))
		}
	}
	return all
}

// foundRule holds the constants of a rule: the values that it compares with and
// loads and the chains that it jumps to, one after the other.
type foundRule struct {
	chain, comment string
	constants      []byte
	drops          bool
}

func found(r nft.Rule) foundRule {
	f := foundRule{chain: r.Chain, comment: r.Comment}
	for _, x := range r.Exprs.List() {
		f.constants = append(append(f.constants, x.Value()...), x.Jump()...)
		f.drops = f.drops || x.Drops()
	}
	return f
}

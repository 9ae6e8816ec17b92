package netfilter

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/embedcni/cni/internal/kernel/iptables"
	"github.com/embedcni/cni/internal/kernel/nft"
)

// lacks returns an error that says what is missing, unless a rule is there in one of the
// forms, and leads to where it has effect. err means that nobody can tell.
func (t reference) lacks(r Rule) (missing, err error) {
	var errs []error
	for _, variant := range []string{"-nft", "-legacy", ""} {
		f := form{reference: t, variant: variant}
		f.want(r)
		if len(f.errs) == 0 {
			f.errs = []error{errors.New("the form has no such rules")}
		}
		errs = append(errs, cmp.Or(f.errs...))
	}
	if slices.Contains(errs, nil) {
		return nil, nil
	}
	if i := slices.IndexFunc(errs, func(err error) bool { return errors.Is(err, iptables.ErrHidden) }); i >= 0 {
		return nil, errs[i]
	}
	return fmt.Errorf("%w; %w; %w", errs[0], errs[1], errs[2]), nil
}

// form looks for rules in a variant of iptables, or in nftables.
type form struct {
	reference
	variant string  // of iptables; empty: nftables
	errs    []error // for each wanted rule: an error that names it, unless it is there
}

func (f *form) want(r Rule) {
	if r.Kind == Spoof {
		f.spoof(r)
	}
	for _, p := range r.Addresses {
		p, err := PlainPrefix(p)
		switch {
		case err != nil:
			f.errs = append(f.errs, err)
		case r.Kind == Masquerade:
			f.masquerade(r, p)
		case r.Kind == Publish:
			f.port(r, p)
		default:
			f.forward(r, p.Addr())
		}
	}
}

// rule returns an error unless there is a rule with the values at the place.
func (t reference) rule(at place, values ...string) error {
	if slices.ContainsFunc(t.rules[at], func(r shown) bool { return r.Has(values...) }) {
		return nil
	}
	switch {
	case at.tool == "":
		return fmt.Errorf("nftables: rule %s %s is missing, with comment %q and values %q", at.table, at.chain, at.word, values)
	case t.hidden[place{tool: at.tool, table: at.table}]:
		return fmt.Errorf("%s: table %s: %w", at.tool, at.table, iptables.ErrHidden)
	}
	_, value, _ := strings.Cut(at.word, "=")
	return fmt.Errorf("%s: a rule of chain %s in table %s about %s is not there", at.tool, at.chain, at.table, value)
}

// listed wants a rule in nftables.
func (f *form) listed(t nft.Table, chain, comment string, values ...string) {
	f.errs = append(f.errs, f.rule(place{"", t.String(), chain, comment}, values...))
}

// saved wants a rule about the first of the words with all of them.
func (f *form) saved(a netip.Addr, table, chain string, words ...string) {
	f.errs = append(f.errs, f.rule(f.place(a, table, chain, words[0]), words...))
}

func (f *form) place(a netip.Addr, table, chain, word string) place {
	family := "iptables"
	if a.Is6() {
		family = "ip6tables"
	}
	return place{family + f.variant, table, chain, word}
}

func bytesOf(a netip.Addr) string { return string(a.AsSlice()) }

func portBytes(port uint16) string { return string(binary.BigEndian.AppendUint16(nil, port)) }

// loopback is the address of the host from which packets to a forwarded port are
// masqueraded.
func loopback() netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 0, 1}) }

// toSubnet is the word for packets to a subnet. iptables-save leaves out one with all
// addresses.
func toSubnet(option string, p netip.Prefix) string {
	if p.Bits() == 0 {
		return option + "=any"
	}
	return option + "=" + p.Masked().String()
}

// toHost is the word for packets to or from one address, or any.
func toHost(option string, a netip.Addr) string {
	if !a.IsValid() {
		return option + "=any"
	}
	return toSubnet(option, netip.PrefixFrom(a, a.BitLen()))
}

// masquerade wants what SetupIPMasq makes in pkg/ip/ipmasq_iptables_linux.go or
// ipmasq_nftables_linux.go.
func (f *form) masquerade(r Rule, p netip.Prefix) {
	a := p.Addr()
	if f.variant == "" {
		f.listed(masqueradeTable(), "postrouting", "", jump(chainChecks))
		f.listed(masqueradeTable(), chainChecks, r.Comment(), bytesOf(a), bytesOf(p.Masked().Addr())[:p.Bits()/8])
		return
	}
	chain := r.Chains()[0].Name
	f.saved(a, tableNAT, "POSTROUTING", "-j="+chain, toHost("-s", a))
	f.saved(a, tableNAT, chain, "-j=MASQUERADE")
	f.saved(a, tableNAT, chain, "-j=ACCEPT", toSubnet("-d", p))
}

// port wants what forwardPorts makes in plugins/meta/portmap/portmap_iptables.go or
// portmap_nftables.go.
//
//	ip daddr 192.0.2.1 tcp dport 8080 dnat to 10.1.0.2:80 comment "c1"
//	ip saddr 10.1.0.2 ip daddr 10.1.0.2 masquerade comment "c1"
func (f *form) port(r Rule, subnet netip.Prefix) {
	to, p := subnet.Addr(), r.Port
	host, protocol, ok, err := p.Match(to.Is4())
	switch {
	case err != nil:
		f.errs = append(f.errs, err)
	case !ok:
		f.errs = append(f.errs, nil)
	case f.variant != "":
		f.savedPort(r, subnet, host)
	default:
		table := hostportTable(nft.FamilyOf(to))
		f.listed(table, "prerouting", "", jump(chainAllHostports))
		f.listed(table, "output", "", jump(chainAllHostports))
		f.listed(table, chainAllHostports, "", jump(chainHostports))
		f.listed(table, chainHostports, r.ContainerID, bytesOf(host), string([]byte{protocol}), portBytes(p.HostPort), bytesOf(to), portBytes(p.ContainerPort))
		if r.SNAT {
			f.listed(table, chainMasquerading, r.ContainerID, bytesOf(to), bytesOf(to))
		}
		if r.SNAT && to.Is4() {
			f.listed(table, chainMasquerading, r.ContainerID, bytesOf(loopback()), bytesOf(to))
		}
	}
}

func (f *form) savedPort(r Rule, subnet netip.Prefix, host netip.Addr) {
	to, own, port := subnet.Addr(), r.Chains()[1].Name, portWords(r.Port)
	about := append(port, toHost("-d", host))
	f.saved(to, tableNAT, "PREROUTING", "-j="+chainHostPort)
	f.saved(to, tableNAT, "OUTPUT", "-j="+chainHostPort)
	f.saved(to, tableNAT, chainHostPort, append([]string{"-j=" + own}, port...)...)
	f.saved(to, tableNAT, own, append(about, "-j=DNAT", "--to-destination="+netip.AddrPortFrom(to, r.Port.ContainerPort).String())...)
	if !r.SNAT {
		return
	}
	from := []string{toSubnet("-s", subnet)}
	if to.Is4() {
		from = append(from, toHost("-s", loopback()))
	}
	for _, word := range from {
		if r.MasqAll {
			word = iptables.NotTranslated
		}
		f.saved(to, tableNAT, own, append(about, iptables.NotTranslated, word)...)
	}
	if f.rule(f.place(to, tableNAT, own, about[0]), append(about, "-j="+chainMark)...) == nil { // else it is an administrator's chain that marks
		f.saved(to, tableNAT, chainMark, "-j=MARK")
		f.saved(to, tableNAT, "POSTROUTING", "-j="+chainMasq)
		f.saved(to, tableNAT, chainMasq, "-j=MASQUERADE")
	}
}

// forward wants what addRules makes in plugins/meta/firewall/iptables.go for one address, or
// setupIsolationChains in its ingresspolicy.go.
func (f *form) forward(r Rule, a netip.Addr) {
	switch {
	case f.variant == "":
		f.errs = append(f.errs, errors.New("nftables: the plugin firewall has no such form"))
	case r.Kind == Accept:
		f.saved(a, tableFilter, "FORWARD", "-j="+chainForward)
		f.saved(a, tableFilter, chainForward, toHost("-d", a), "-j=ACCEPT")
		f.saved(a, tableFilter, chainForward, toHost("-s", a), "-j=ACCEPT")
	default:
		f.saved(a, tableFilter, "FORWARD", "-j="+chainStage1)
		f.saved(a, tableFilter, chainStage1, "-j="+chainStage2, "-i="+r.Bridge)
		f.saved(a, tableFilter, chainStage2, "-j=DROP", "-o="+r.Bridge)
		if r.Policy == "isolated" {
			f.saved(a, tableFilter, chainStage1, "-j=DROP", "-i="+r.Bridge, "-o="+r.Bridge)
		}
	}
}

// spoof wants what pkg/link/spoofcheck.go makes, which has no form in iptables.
func (f *form) spoof(r Rule) {
	if f.variant != "" {
		return
	}
	comment, chains := SpoofNames(r.ContainerID, r.IfName)
	f.listed(spoofTable(), chainSpoof, comment, r.Link+"\x00", jump(chains[0]))
	f.listed(spoofTable(), chains[0], comment, jump(chains[1]))
	f.listed(spoofTable(), chains[1], comment, string(r.MAC))
	f.listed(spoofTable(), chains[1], comment, drops)
}

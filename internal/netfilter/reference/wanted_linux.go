package reference

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/nft"
)

// errNoRules means that a form has no rules for a part.
var errNoRules = errors.New("the form has no such rules")

// Has returns nil if the rules of a part are there in one of the forms, and lead to where
// they have effect.
func (s *Sight) Has(part fwrules.Part) error {
	errs := []error{s.hasSaved("-nft", part.Rules), s.hasSaved("-legacy", part.Rules), s.hasListed(part.Rules)}
	if slices.Contains(errs, nil) {
		return nil
	}
	for _, err := range errs {
		if errors.Is(err, iptables.ErrHidden) {
			return err
		}
	}
	return fwrules.AsMissing(fmt.Errorf("%w; %w; %w", errs[0], errs[1], errs[2]))
}

// rule returns an error unless there is a rule with the values at the place.
func (s *Sight) rule(at place, values ...string) error {
	if slices.ContainsFunc(s.rules[at], func(r rule) bool { return r.has(values...) }) {
		return nil
	}
	switch {
	case at.tool == "":
		return fmt.Errorf("nftables: rule %s %s is missing, with comment %q and values %x", at.table, at.chain, at.word, values)
	case s.hidden[place{tool: at.tool, table: at.table}]:
		return fmt.Errorf("%s: table %s: %w", at.tool, at.table, iptables.ErrHidden)
	}
	_, value, _ := strings.Cut(at.word, "=")
	return fmt.Errorf("%s: a rule of chain %s in table %s about %s is not there", at.tool, at.chain, at.table, value)
}

// first returns the first error, which is errNoRules if nothing was asked.
func first(errs []error) error {
	if len(errs) == 0 {
		return errNoRules
	}
	return cmp.Or(errs...)
}

// hasListed returns an error that names the first of the rules that is not there in
// nftables.
func (s *Sight) hasListed(r fwrules.Rules) error {
	var errs []error
	want := func(t nft.Table, chain, comment string, values ...string) {
		errs = append(errs, s.rule(place{"", t.String(), chain, comment}, values...))
	}
	for _, m := range r.Masquerade {
		for _, p := range m.Addresses {
			p, err := fwrules.PlainPrefix(p)
			errs = append(errs, err)
			want(masqueradeTable(), "postrouting", "", chainChecks)
			want(masqueradeTable(), chainChecks, m.Comment(), bytesOf(p.Addr()), bytesOf(p.Masked().Addr())[:p.Bits()/8])
		}
	}
	for _, h := range r.HostPorts {
		for _, to := range []netip.Prefix{h.V4, h.V6} {
			if to.IsValid() {
				errs = append(errs, wantPorts(h, to.Addr().Unmap(), want))
			}
		}
	}
	for _, c := range r.Spoof {
		comment, chains := fwrules.SpoofNames(c.ContainerID, c.IfName)
		want(spoofTable(), chainSpoof, comment, c.Port+"\x00", chains[0])
		want(spoofTable(), chains[0], comment, chains[1])
		want(spoofTable(), chains[1], comment, string(c.MAC))
		want(spoofTable(), chains[1], comment, drops)
	}
	if len(r.Forward) > 0 {
		errs = append(errs, errors.New("nftables: the plugin firewall has no such form"))
	}
	return first(errs)
}

func bytesOf(a netip.Addr) string { return string(a.AsSlice()) }

func portBytes(port uint16) string { return string(binary.BigEndian.AppendUint16(nil, port)) }

// loopback is the address of the host from which packets to a forwarded port are
// masqueraded.
func loopback() netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 0, 1}) }

// wantPorts wants the rules for the ports of one family.
//
//	ip daddr 192.0.2.1 tcp dport 8080 dnat to 10.1.0.2:80 comment "c1"
//	ip saddr 10.1.0.2 ip daddr 10.1.0.2 masquerade comment "c1"
func wantPorts(h fwrules.HostPorts, to netip.Addr, want func(t nft.Table, chain, comment string, values ...string)) error {
	table := hostportTable(nft.FamilyOf(to))
	for _, p := range h.Ports {
		host, protocol, ok, err := p.Match(to.Is4())
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		want(table, "prerouting", "", chainAllHostports)
		want(table, "output", "", chainAllHostports)
		want(table, chainAllHostports, "", chainHostports)
		want(table, chainHostports, h.ContainerID, bytesOf(host), string([]byte{protocol}), portBytes(p.HostPort), bytesOf(to), portBytes(p.ContainerPort))
		if !h.SNAT {
			continue
		}
		want(table, chainMasquerading, h.ContainerID, bytesOf(to), bytesOf(to))
		if to.Is4() {
			want(table, chainMasquerading, h.ContainerID, bytesOf(loopback()), bytesOf(to))
		}
	}
	return nil
}

// hasSaved returns an error that names the first of the rules that is not there in a
// variant of iptables.
func (s *Sight) hasSaved(variant string, r fwrules.Rules) error {
	w := &wantedSaved{Sight: s, variant: variant}
	for _, m := range r.Masquerade {
		for _, p := range m.Addresses {
			if p, err := fwrules.PlainPrefix(p); err != nil {
				w.errs = append(w.errs, err)
			} else {
				w.masquerade(m.Chains()[0].Name, p)
			}
		}
	}
	for _, h := range r.HostPorts {
		for _, to := range []netip.Prefix{h.V4, h.V6} {
			for _, p := range h.Ports {
				if to.IsValid() {
					w.port(h, p, to)
				}
			}
		}
	}
	for _, f := range r.Forward {
		for _, p := range f.Addresses {
			w.forward(f, p.Addr().Unmap())
		}
	}
	return first(w.errs)
}

// wantedSaved looks for rules in a variant of iptables.
type wantedSaved struct {
	*Sight
	variant string
	errs    []error
}

// rule looks for a rule about the first of the words with all of them.
func (w *wantedSaved) rule(a netip.Addr, table, chain string, words ...string) error {
	family := "iptables"
	if a.Is6() {
		family = "ip6tables"
	}
	return w.Sight.rule(place{family + w.variant, table, chain, words[0]}, words...)
}

// want notes an error unless there is such a rule.
func (w *wantedSaved) want(a netip.Addr, table, chain string, words ...string) {
	w.errs = append(w.errs, w.rule(a, table, chain, words...))
}

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

// masquerade wants what SetupIPMasq makes in pkg/ip/ipmasq_iptables_linux.go.
func (w *wantedSaved) masquerade(chain string, p netip.Prefix) {
	a := p.Addr()
	w.want(a, tableNAT, "POSTROUTING", "-j="+chain, toHost("-s", a))
	w.want(a, tableNAT, chain, "-j=MASQUERADE")
	w.want(a, tableNAT, chain, "-j=ACCEPT", toSubnet("-d", p))
}

// port wants what forwardPorts makes in plugins/meta/portmap/portmap_iptables.go.
func (w *wantedSaved) port(h fwrules.HostPorts, p fwrules.HostPort, subnet netip.Prefix) {
	to := subnet.Addr().Unmap()
	host, _, ok, err := p.Match(to.Is4())
	if err != nil || !ok {
		w.errs = append(w.errs, err)
		return
	}
	own, port := h.Chains()[1].Name, portWords(p)
	about := append(port, toHost("-d", host))
	w.want(to, tableNAT, "PREROUTING", "-j="+chainHostPort)
	w.want(to, tableNAT, "OUTPUT", "-j="+chainHostPort)
	w.want(to, tableNAT, chainHostPort, append([]string{"-j=" + own}, port...)...)
	w.want(to, tableNAT, own, append(about, "-j=DNAT", "--to-destination="+netip.AddrPortFrom(to, p.ContainerPort).String())...)
	if !h.SNAT {
		return
	}
	from := []string{toSubnet("-s", subnet)}
	if to.Is4() {
		from = append(from, toHost("-s", loopback()))
	}
	for _, f := range from {
		if h.MasqAll {
			f = notTranslated
		}
		w.want(to, tableNAT, own, append(about, notTranslated, f)...)
	}
	if w.rule(to, tableNAT, own, append(about, "-j="+chainMark)...) == nil { // else it is an administrator's chain that marks
		w.want(to, tableNAT, chainMark, "-j=MARK")
		w.want(to, tableNAT, "POSTROUTING", "-j="+chainMasq)
		w.want(to, tableNAT, chainMasq, "-j=MASQUERADE")
	}
}

// forward wants what addRules makes in plugins/meta/firewall/iptables.go for one address, or
// setupIsolationChains in its ingresspolicy.go.
func (w *wantedSaved) forward(f fwrules.Forward, a netip.Addr) {
	if !f.IngressOnly {
		w.want(a, tableFilter, "FORWARD", "-j="+chainForward)
		w.want(a, tableFilter, chainForward, toHost("-d", a), "-j=ACCEPT")
		w.want(a, tableFilter, chainForward, toHost("-s", a), "-j=ACCEPT")
		return
	}
	w.want(a, tableFilter, "FORWARD", "-j="+chainStage1)
	w.want(a, tableFilter, chainStage1, "-j="+chainStage2, "-i="+f.Bridge)
	w.want(a, tableFilter, chainStage2, "-j=DROP", "-o="+f.Bridge)
	if f.Ingress == "isolated" {
		w.want(a, tableFilter, chainStage1, "-j=DROP", "-i="+f.Bridge, "-o="+f.Bridge)
	}
}

package reference

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/nft"
)

// The tables and chains of the plugins in nftables, of pkg/ip/ipmasq_nftables_linux.go and
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

// Sight is the plugins' rules at one time, in all forms. It is safe for concurrent use.
type Sight struct {
	saved  []*savedRules
	tables sight
	Steady bool // nothing has changed meanwhile; else something may be missing
}

// Read reads the rules: those that can be of r, or all if r is nil. It reads them again
// if they change meanwhile, a few times.
func (f Form) Read(ctx context.Context, r *fwrules.Rules) (*Sight, error) {
	s := &Sight{Steady: true}
	keep := func(string) bool { return true }
	wanted := keep
	if r != nil {
		keep, wanted = linesOf(*r), commentsOf(*r)
	}
	if err := f.readTables(ctx, s, wanted, nft.Table{Family: nft.FamilyInet, Name: tableMasquerade},
		nft.Table{Family: nft.FamilyIPv4, Name: tableHostport}, nft.Table{Family: nft.FamilyIPv6, Name: tableHostport}); err != nil {
		return nil, err
	}
	err := f.in(func() error {
		for _, t := range f.tools() {
			read, steady, err := readSaved(ctx, t, keep)
			if err != nil {
				return err
			}
			s.saved, s.Steady = append(s.saved, read), s.Steady && steady
		}
		return nil
	})
	return s, err
}

// ReadSpoofChecks reads the rules of all spoof checks.
func (f Form) ReadSpoofChecks(ctx context.Context) (*Sight, error) {
	s := &Sight{Steady: true}
	return s, f.readTables(ctx, s, func(string) bool { return true }, spoofTable())
}

func (f Form) readTables(ctx context.Context, s *Sight, wanted func(comment string) bool, tables ...nft.Table) error {
	err := f.onRules(ctx, func(k ruleTable) error {
		return nft.Repeat(ctx, nft.MostReads, func() (err error) {
			s.tables, _, err = look(k, tables, wanted)
			return err
		})
	})
	switch {
	case errors.Is(err, nft.ErrChanged):
		s.Steady = false
	case err != nil && !errors.Is(err, nft.ErrNotSupported):
		return err
	}
	return nil
}

// Has returns nil if the rules of a part are there in one of the forms, and lead to where
// they have effect.
func (s *Sight) Has(part fwrules.Part) error {
	missing := []error{errNoRules, errNoRules, s.tables.has(part.Rules)} // iptables-nft, iptables-legacy, nftables
	hidden := error(nil)
	for i, legacy := range []bool{false, true} {
		for _, d := range s.saved {
			if d.tool.legacy != legacy {
				continue
			}
			err := d.has(part.Rules)
			if err != errNoRules && (missing[i] == nil || missing[i] == errNoRules) {
				missing[i] = err
			}
			if err != nil && err != errNoRules && hidden == nil {
				hidden = d.hides(part.Rules)
			}
		}
	}
	if slices.Contains(missing, nil) {
		return nil
	}
	if hidden != nil {
		return hidden
	}
	return fwrules.AsMissing(fmt.Errorf("%w; %w; %w", missing[0], missing[1], missing[2]))
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

// has reports whether the constants of the rule have the values in order. They identify
// the rule: the rest depends on the version of nft that compiled it.
func (r foundRule) has(values ...[]byte) bool {
	rest := r.constants
	for _, v := range values {
		i := bytes.Index(rest, v)
		if i < 0 {
			return false
		}
		rest = rest[i+len(v):]
	}
	return true
}

// place is where a rule is looked for.
type place struct {
	table          nft.Table
	chain, comment string
}

// sight is the rules of some tables of nftables at one time: all, or those with some
// comments.
type sight map[place][]foundRule

// look reads the rules of the tables, with one of the comments or any, and returns a
// generation from before. It fails with [nft.ErrChanged] unless all is of that
// generation; then the sight may lack something.
func look(k ruleTable, tables []nft.Table, wanted func(comment string) bool) (sight, uint32, error) {
	before, err := k.Generation()
	if err != nil {
		return nil, 0, wrap(err)
	}
	s := make(sight)
	var changed error
	for _, t := range tables {
		err := k.Rules(t, "", nil, func(r nft.Rule) error {
			if wanted(r.Comment) {
				at := place{t, r.Chain, r.Comment}
				s[at] = append(s[at], found(r))
			}
			return nil
		})
		if changed = errors.Join(changed, err); err != nil && !errors.Is(err, nft.ErrChanged) {
			return nil, 0, wrap(err)
		}
	}
	after := before
	if changed == nil {
		after, changed = k.Generation()
	}
	if changed == nil && after != before {
		changed = nft.ErrChanged
	}
	return s, before, wrap(changed)
}

func wrap(err error) error {
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	return nil
}

// commentsOf returns a function that reports whether a rule with a comment can be of r.
func commentsOf(r fwrules.Rules) func(comment string) bool {
	comments := []string{""} // of rules for all containers
	for _, m := range r.Masquerade {
		comments = append(comments, m.Comment())
	}
	for _, h := range r.HostPorts {
		comments = append(comments, h.ContainerID)
	}
	return func(comment string) bool { return slices.Contains(comments, comment) }
}

// rule returns an error unless a chain has a rule with the comment and the values.
func (s sight) rule(t nft.Table, chain, comment string, values ...[]byte) error {
	if slices.ContainsFunc(s[place{t, chain, comment}], func(r foundRule) bool { return r.has(values...) }) {
		return nil
	}
	return fmt.Errorf("nftables: rule %v %s is missing, with comment %q and values %x", t, chain, comment, values)
}

// has returns an error that names the first of the rules that is not there.
func (s sight) has(r fwrules.Rules) error {
	var errs []error
	for _, m := range r.Masquerade {
		for _, p := range m.Addresses {
			p, err := fwrules.PlainPrefix(p)
			table := nft.Table{Family: nft.FamilyInet, Name: tableMasquerade}
			errs = append(errs, err, s.rule(table, "postrouting", "", []byte(chainChecks)),
				s.rule(table, chainChecks, m.Comment(), p.Addr().AsSlice(), p.Masked().Addr().AsSlice()[:p.Bits()/8]))
		}
	}
	for _, h := range r.HostPorts {
		for _, to := range []netip.Prefix{h.V4, h.V6} {
			if to.IsValid() {
				errs = append(errs, s.hasPorts(h, to.Addr().Unmap()))
			}
		}
	}
	if len(r.Forward) > 0 {
		errs = append(errs, errors.New("nftables: the plugin firewall has no such form"))
	}
	return first(errs)
}

// loopback is the address of the host from which packets to a forwarded port are
// masqueraded.
func loopback() netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 0, 1}) }

// errNoRules means that a form has no rules for a part, or for a family.
var errNoRules = errors.New("the form has no such rules")

// first returns the first error, which is errNoRules if nothing was asked.
func first(errs []error) error {
	if len(errs) == 0 {
		return errNoRules
	}
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// hasPorts is has for the ports of one family.
//
//	ip daddr 192.0.2.1 tcp dport 8080 dnat to 10.1.0.2:80 comment "c1"
//	ip saddr 10.1.0.2 ip daddr 10.1.0.2 masquerade comment "c1"
func (s sight) hasPorts(h fwrules.HostPorts, to netip.Addr) error {
	table := nft.Table{Family: nft.FamilyOf(to), Name: tableHostport}
	var errs []error
	for _, p := range h.Ports {
		host, protocol, ok, err := p.Match(to.Is4())
		if err != nil || !ok {
			errs = append(errs, err)
			continue
		}
		var values [][]byte
		if host.IsValid() {
			values = append(values, host.AsSlice())
		}
		values = append(values, []byte{protocol}, binary.BigEndian.AppendUint16(nil, p.HostPort),
			to.AsSlice(), binary.BigEndian.AppendUint16(nil, p.ContainerPort))
		errs = append(errs, s.rule(table, "prerouting", "", []byte(chainAllHostports)), s.rule(table, "output", "", []byte(chainAllHostports)),
			s.rule(table, chainAllHostports, "", []byte(chainHostports)), s.rule(table, chainHostports, h.ContainerID, values...))
		if h.SNAT {
			errs = append(errs, s.rule(table, chainMasquerading, h.ContainerID, to.AsSlice(), to.AsSlice()))
			if to.Is4() {
				errs = append(errs, s.rule(table, chainMasquerading, h.ContainerID, loopback().AsSlice(), to.AsSlice()))
			}
		}
	}
	return first(errs)
}

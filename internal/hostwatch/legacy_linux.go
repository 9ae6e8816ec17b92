package hostwatch

import (
	"errors"
	"net/netip"

	"github.com/embedcni/cni/internal/guard"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/nft"
	"github.com/embedcni/cni/internal/thread"
)

// Legacy reads the legacy tables of a host, and finds what has gone since it did before.
// One goroutine at a time may use it.
type Legacy struct {
	Host *hostns.NetNS

	before map[legacyObject]int
}

// legacyObject is a chain, or a rule of it, as far as it matters.
type legacyObject struct {
	v6           bool
	table, chain string
	rule         bool
	comment      string
	target       string
	src, dst     netip.Addr
}

// Used reports whether containers have chains or rules in the legacy tables. The chains
// that plugins make for all containers stay when the last container has gone.
func (l *Legacy) Used() (bool, error) {
	now, err := l.list()
	for o := range now {
		if guard.IsContainers(o.chain) || o.chain == firewallChain && (o.src.IsValid() || o.dst.IsValid()) {
			return true, err
		}
	}
	return false, err
}

// firewallChain is the chain in which the firewall plugin has rules about addresses of
// containers, and no chains of their own.
const firewallChain = "CNI-FORWARD"

// Read reports what has gone since the last Read. At the first it reports that anything
// may have gone: nobody knows of the time before it.
func (l *Legacy) Read(emit func(guard.Event)) error {
	now, err := l.list()
	if err != nil {
		return err
	}
	if l.before == nil {
		emit(guard.Event{Lost: guard.Rules})
	}
	for o, n := range l.before {
		if now[o] >= n {
			continue
		}
		emit(guard.Event{Object: o.event()})
	}
	l.before = now
	return nil
}

func (o legacyObject) event() *guard.Object {
	e := &guard.Object{Family: nft.FamilyIPv4, Table: o.table, Chain: o.chain, Rule: o.rule, Jump: o.target}
	if o.v6 {
		e.Family = nft.FamilyIPv6
	}
	if o.comment != "" {
		e.Comments = []string{o.comment}
	}
	for _, a := range []netip.Addr{o.src, o.dst} {
		if a.IsValid() {
			e.Addresses = append(e.Addresses, a)
		}
	}
	return e
}

// list counts the objects. It creates no table.
func (l *Legacy) list() (map[legacyObject]int, error) {
	all := make(map[legacyObject]int)
	err := thread.In(l.Host.Handle, func() error {
		var errs []error
		for _, family := range []string{"iptables", "ip6tables"} {
			for _, table := range []string{"nat", "filter", "mangle"} {
				errs = append(errs, listTable(iptables.Tool{Family: family, Legacy: true}, table, all))
			}
		}
		return errors.Join(errs...)
	})
	return all, err
}

func listTable(x iptables.Tool, table string, all map[legacyObject]int) error {
	has, err := x.HasLegacyTable(table)
	if !has || err != nil {
		return err
	}
	rules, chains, err := x.LegacyRules(table)
	if err != nil {
		return err
	}
	for chain := range chains {
		all[legacyObject{v6: x.V6(), table: table, chain: chain}]++
	}
	for _, r := range rules {
		all[legacyObject{v6: x.V6(), table: table, chain: r.Chain, rule: true, comment: r.Comment, target: r.Target, src: r.Src, dst: r.Dst}]++
	}
	return nil
}

package hostwatch

import (
	"errors"
	"strings"

	"github.com/embedcni/cni/internal/guard"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/thread"
)

// Legacy reads the legacy tables of a host, and finds out whether something has gone since
// it did before. One goroutine at a time may use it.
type Legacy struct {
	Host *hostns.NetNS

	before map[legacyObject]int
}

// legacyObject is a chain, or a rule.
type legacyObject struct {
	v6           bool
	table, chain string
	rule         iptables.LegacyRule
}

// Used reports whether containers have chains or rules in the legacy tables. The chains
// that plugins make for all containers stay when the last container has gone.
func (l *Legacy) Used() (bool, error) {
	now, err := l.list()
	for o := range now {
		if isContainers(o.chain) || o.chain == firewallChain && (o.rule.Src.IsValid() || o.rule.Dst.IsValid()) {
			return true, err
		}
	}
	return false, err
}

// firewallChain is the chain in which the firewall plugin has rules about addresses of
// containers, and no chains of their own.
const firewallChain = "CNI-FORWARD"

// isContainers reports whether a chain is of the form that the plugins give to one
// container's: CNI-, DN- or SN- perhaps, and a hash.
func isContainers(chain string) bool {
	rest, ok := strings.CutPrefix(chain, "CNI-")
	if !ok {
		return false
	}
	rest = strings.TrimPrefix(strings.TrimPrefix(rest, "DN-"), "SN-")
	return len(rest) >= 20 && strings.Trim(rest, "0123456789abcdef") == ""
}

// Read reports whether something has gone since the last Read, or was replaced. At the
// first it reports that anything may have gone: nobody knows of the time before it.
func (l *Legacy) Read(emit func(guard.Event)) error {
	now, err := l.list()
	if err != nil {
		return err
	}
	gone := l.before == nil
	for o, n := range l.before {
		gone = gone || now[o] < n
	}
	l.before = now
	if gone {
		emit(guard.Event{Rules: &guard.Changed{}})
	}
	return nil
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
		all[legacyObject{v6: x.V6(), table: table, chain: r.Chain, rule: r}]++
	}
	return nil
}

package guard

import (
	"errors"
	"strings"

	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/thread"
)

// firewallChain is the chain in which the firewall plugin has rules about addresses of
// containers, and no chains of their own.
const firewallChain = "CNI-FORWARD"

// usesLegacyTables reports whether containers have chains or rules in the legacy tables.
// The chains that plugins make for all containers stay when the last container has gone.
// It creates no table.
func (h *host) usesLegacyTables() (used bool, err error) {
	err = thread.In(h.ns, func() error {
		var errs []error
		for _, family := range []string{"iptables", "ip6tables"} {
			for _, table := range []string{"nat", "filter", "mangle"} {
				there, err := isUsed(iptables.Tool{Family: family, Legacy: true}, table)
				used = used || there
				errs = append(errs, err)
			}
		}
		return errors.Join(errs...)
	})
	return used, err
}

func isUsed(x iptables.Tool, table string) (bool, error) {
	has, err := x.HasLegacyTable(table)
	if !has || err != nil {
		return false, err
	}
	rules, chains, err := x.LegacyRules(table)
	for chain := range chains {
		if isContainers(chain) {
			return true, err
		}
	}
	for _, r := range rules {
		if r.Chain == firewallChain && (r.Src.IsValid() || r.Dst.IsValid()) || isContainers(r.Chain) {
			return true, err
		}
	}
	return false, err
}

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

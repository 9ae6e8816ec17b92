package guard

import (
	"context"
	"errors"
	"strings"

	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/thread"
)

// firewallChain is the chain in which the firewall plugin has rules about addresses of
// containers and networks, and no chains of their own.
const firewallChain = "CNI-FORWARD"

// usesLegacyTables reports whether containers have chains or rules in the legacy tables.
// The chains that plugins make for all containers stay when the last container has gone.
// It creates no table, and starts no process unless there is one.
func (h *host) usesLegacyTables(ctx context.Context) (used bool, err error) {
	err = thread.In(h.ns, func() error {
		var errs []error
		for _, family := range []string{"iptables", "ip6tables"} {
			there, err := isUsed(ctx, iptables.Tool{Family: family, Legacy: true})
			used = used || there
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
	return used, err
}

func isUsed(ctx context.Context, x iptables.Tool) (bool, error) {
	tables, hidden, err := x.Read(ctx, []iptables.ChainID{{Table: "nat"}, {Table: "filter"}, {Table: "mangle"}}, nil)
	if err != nil || len(hidden) > 0 {
		return len(hidden) > 0, err
	}
	for _, t := range tables {
		for chain := range t.Chains {
			if isContainers(chain) {
				return true, nil
			}
		}
		for _, r := range t.Rules {
			if r.Chain == firewallChain && !r.Words.Has("-s=any", "-d=any") {
				return true, nil
			}
		}
	}
	return false, nil
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

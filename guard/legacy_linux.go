package guard

import (
	"context"
	"regexp"

	"github.com/embedcni/cni/internal/kernel/iptables"
	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/thread"
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
		return joined.Errors(errs...)
	})
	return used, err
}

func isUsed(ctx context.Context, x iptables.Tool) (bool, error) {
	tables, hidden, err := x.Read(ctx, []iptables.ChainID{{Table: "nat"}, {Table: "filter"}, {Table: "mangle"}}, nil)
	if err != nil || len(hidden) > 0 {
		return len(hidden) > 0, err
	}
	// The chains that the plugins give to one container: CNI-, DN- or SN- perhaps, and a hash.
	containers := regexp.MustCompile(`^CNI-(DN-|SN-)?[0-9a-f]{20,}$`)
	for _, t := range tables {
		for chain := range t.Chains {
			if containers.MatchString(chain) {
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

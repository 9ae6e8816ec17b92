package netfilter

import (
	"cmp"
	"context"
	"encoding/json"
	"net/netip"
	"slices"

	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/nft"
	"github.com/embedcni/cni/netns"
)

// HasShared reports whether the chains are there that an executable of the reference
// plugins portmap, or with forward firewall, makes for all containers, by the request of its
// ADD. Of two that make them at the same time, one may fail. Which of them an executable
// makes depends on its version and configuration, so that the answer may be false for good.
func HasShared(ctx context.Context, ns *netns.Handle, o Options, forward bool, request json.RawMessage) (there bool, err error) {
	var conf struct {
		IngressPolicy          string
		IPTablesAdminChainName string
		RuntimeConfig          struct{ PortMappings []json.RawMessage }
		PrevResult             struct {
			IPs []struct{ Address netip.Prefix }
		}
	}
	if err := json.Unmarshal(request, &conf); err != nil {
		return true, nil // the plugin says so
	}
	if !forward && len(conf.RuntimeConfig.PortMappings) == 0 {
		return true, nil // it makes none
	}
	chains := []iptables.ChainID{{Table: "nat", Chain: "CNI-HOSTPORT-DNAT"}, {Table: "nat", Chain: "CNI-HOSTPORT-SETMARK"}, {Table: "nat", Chain: "CNI-HOSTPORT-MASQ"}}
	if forward {
		chains = []iptables.ChainID{{Table: tableFilter, Chain: chainForward}, {Table: tableFilter, Chain: cmp.Or(conf.IPTablesAdminChainName, chainAdmin)}}
		if conf.IngressPolicy != "" && conf.IngressPolicy != "open" {
			chains = append(chains, iptables.ChainID{Table: tableFilter, Chain: chainStage1}, iptables.ChainID{Table: tableFilter, Chain: "CNI-ISOLATION-STAGE-2"})
		}
	}
	for _, family := range []string{"iptables", "ip6tables"} {
		tool := iptables.Tool{Family: family, Sockets: nft.Sockets{Pool: o.Sockets, NS: ns}}
		has := func(ip struct{ Address netip.Prefix }) bool { return ip.Address.Addr().Is6() == tool.V6() }
		if !slices.ContainsFunc(conf.PrevResult.IPs, has) {
			continue
		}
		if err := tool.Detect(ctx); err != nil {
			return false, err
		}
		there, err := hasAll(ctx, tool, chains)
		if !there || err != nil {
			return false, err
		}
	}
	return true, nil
}

// hasAll reports whether the tool has all of the chains; of the legacy variant, a process
// says so.
func hasAll(ctx context.Context, tool iptables.Tool, chains []iptables.ChainID) (yes bool, err error) {
	if !tool.Legacy {
		exist, err := tool.Exist(ctx, chains)
		return !slices.Contains(exist, false), err
	}
	err = nft.In(tool.Sockets.NS, func() error {
		out, err := tool.Save(ctx, chains)
		if err != nil {
			return err
		}
		tables, err := iptables.ParseSave(out)
		yes = !slices.ContainsFunc(chains, func(id iptables.ChainID) bool {
			return !slices.ContainsFunc(tables, func(t iptables.Ruleset) bool { return t.Table == id.Table && t.Chains[id.Chain] })
		})
		return err
	})
	return yes, err
}

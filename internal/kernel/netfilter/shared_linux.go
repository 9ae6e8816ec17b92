package netfilter

import (
	"cmp"
	"context"
	"encoding/json"
	"net/netip"
	"slices"

	"github.com/embedcni/cni/internal/kernel/iptables"
	"github.com/embedcni/cni/internal/kernel/nft"
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
	tools, err := systemTools(ctx, nft.Sockets{Pool: o.Sockets, NS: ns}, func(v6 bool) bool {
		return slices.ContainsFunc(conf.PrevResult.IPs, func(ip struct{ Address netip.Prefix }) bool { return ip.Address.Addr().Is6() == v6 })
	})
	if err != nil {
		return false, err
	}
	there = true
	err = nft.In(ns, func() error {
		for _, tool := range tools {
			some, _, err := tool.Have(ctx, chains)
			if there = there && len(some) == len(chains); err != nil {
				return err
			}
		}
		return nil
	})
	return there && err == nil, err
}

// Package firewall lets a container's packets be forwarded, whatever the policy
// for forwarding is, and keeps bridges apart if it is told to.
package firewall

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/plugin"
)

// Plugin is the plugin "firewall". It follows a plugin that gives the container
// its addresses.
type Plugin struct{}

// conf is the configuration, FirewallNetConf in the reference plugin's
// firewall.go.
type conf struct {
	Backend                string `json:"backend"`
	IPTablesAdminChainName string `json:"iptablesAdminChainName"`
	FirewalldZone          string `json:"firewalldZone"`
	IngressPolicy          string `json:"ingressPolicy"`
}

// Versions are those from 0.4.0 on, with which a previous result is handed to
// DEL.
func (Plugin) Versions() []string { return version.VersionsStartingFrom("0.4.0").SupportedVersions() }

// Add accepts what is sent by and to the addresses of the previous result, and
// passes that on.
func (Plugin) Add(ctx context.Context, r *plugin.Request) (*types100.Result, error) {
	backend, rules, err := parse(ctx, r)
	if err != nil {
		return nil, err
	}
	result, err := r.Chained()
	if err != nil {
		return nil, err
	}
	if err := netfilter.Open(r.Host).Add(ctx, backend, rules); err != nil {
		return nil, err
	}
	return result, nil
}

// Del undoes Add, as far as the addresses are known. That bridges are kept
// apart stays: it is the bridge's, which others may be on.
func (Plugin) Del(ctx context.Context, r *plugin.Request) error {
	backend, rules, err := parse(ctx, r)
	if err != nil || r.PrevResult == nil {
		return err
	}
	return netfilter.Open(r.Host).Remove(ctx, backend, rules)
}

// Check makes sure that every rule is there.
func (Plugin) Check(ctx context.Context, r *plugin.Request) error {
	backend, rules, err := parse(ctx, r)
	if err != nil {
		return err
	}
	if r.PrevResult == nil {
		return plugin.Errorf(types.ErrInvalidNetworkConfig, "plugin firewall: there is no previous result to check against")
	}
	return netfilter.Open(r.Host).Check(ctx, backend, rules)
}

// parse reads and validates the request. An error has the code 7, "invalid
// network config".
func parse(ctx context.Context, r *plugin.Request) (netfilter.Backend, netfilter.Rules, error) {
	var c conf
	if err := r.Decode(&c); err != nil {
		return "", netfilter.Rules{}, err
	}
	backend, err := c.backend(func() bool { return netfilter.PrefersIPTables(ctx) })
	if err != nil {
		return "", netfilter.Rules{}, plugin.Errorf(types.ErrInvalidNetworkConfig, "plugin firewall: %w", err)
	}
	f, err := c.forward(r.PrevResult)
	if err != nil {
		return "", netfilter.Rules{}, plugin.Errorf(types.ErrInvalidNetworkConfig, "plugin firewall: %w", err)
	}
	f.Owner = netfilter.Owner{Network: r.Name, ContainerID: r.ContainerID, IfName: r.IfName}
	return backend, netfilter.Rules{Forward: []netfilter.Forward{f}}, nil
}

// Detect returns what an ADD goes by if the configuration names no backend.
func (Plugin) Detect() string { return netfilter.Detect() }

// backend returns where the rules go. If the configuration does not say, that
// is iptables where a host has it: to accept a packet in one packet filter does
// not keep another, whose policy may be DROP, from dropping it.
func (c conf) backend(hasIPTables func() bool) (netfilter.Backend, error) {
	const firewalld = `needs firewalld, which only the executable of the plugin "firewall" talks to: ` +
		`use that, or set "backend" to "iptables"`
	switch {
	case c.Backend == "firewalld":
		return "", errors.New(`backend "firewalld" ` + firewalld)
	case c.Backend == "" && c.FirewalldZone != "":
		return "", fmt.Errorf("firewalldZone %q %s", c.FirewalldZone, firewalld)
	case c.Backend == "iptables":
		return netfilter.IPTables, nil
	case c.Backend != "":
		return "", fmt.Errorf(`backend is %q: it must be "iptables" or "firewalld"`, c.Backend)
	case c.IPTablesAdminChainName != "", hasIPTables():
		return netfilter.IPTables, nil
	}
	return netfilter.Native, nil
}

// forward returns what is wanted for the addresses of the result, which may be
// unknown.
func (c conf) forward(result *types100.Result) (netfilter.Forward, error) {
	f := netfilter.Forward{AdminChain: c.IPTablesAdminChainName, Ingress: c.IngressPolicy}
	switch c.IngressPolicy {
	case "", "open", "same-bridge", "isolated":
	default:
		return f, fmt.Errorf(`ingressPolicy is %q: it must be "open", "same-bridge" or "isolated"`, c.IngressPolicy)
	}
	if result == nil {
		return f, nil
	}
	for _, ip := range result.IPs {
		if a, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			f.Addresses = append(f.Addresses, a.Unmap())
		}
	}
	if c.IngressPolicy == "" || c.IngressPolicy == "open" {
		return f, nil
	}
	// The plugin bridge reports the bridge first.
	if len(result.Interfaces) == 0 || result.Interfaces[0] == nil || result.Interfaces[0].Name == "" {
		return f, fmt.Errorf(`ingressPolicy %q needs a bridge, which is the first interface of the result before: `+
			`let "firewall" follow "bridge"`, c.IngressPolicy)
	}
	f.Bridge = result.Interfaces[0].Name
	return f, nil
}

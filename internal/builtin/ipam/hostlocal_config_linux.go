package ipam

import (
	"bytes"
	"cmp"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/ip"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"

	"github.com/embedcni/cni/plugin"
)

// defaultDataDir is the reference plugin's default directory for addresses.
const defaultDataDir = "/var/lib/cni/networks"

// hostLocalConfig is a validated configuration.
type hostLocalConfig struct {
	dir        string // directory of the network
	resolvConf string
	routes     []*types.Route
	sets       []allocator.RangeSet
	requested  []net.IP // without duplicates
}

// parseHostLocal reads the configuration of a request with the reference plugin's own
// package, and refuses what that would answer with a panic, or with addresses that nobody
// configured.
func parseHostLocal(r *plugin.Request) (*hostLocalConfig, error) {
	var n allocator.Net
	if err := r.Decode(&n); err != nil {
		return nil, err
	}
	asked := n.RuntimeConfig.IPs
	if n.Args != nil && n.Args.A != nil {
		asked = append(asked, n.Args.A.IPs...)
	}
	if slices.ContainsFunc(asked, func(a *ip.IP) bool { return a == nil || a.ToIP() == nil }) {
		return nil, plugin.Errorf(types.ErrInvalidNetworkConfig, "ips: an address that is requested is empty")
	}
	if err := types.LoadArgs(r.Args, &allocator.IPAMEnvArgs{}); err != nil {
		return nil, plugin.Errorf(types.ErrInvalidEnvironmentVariables, "CNI_ARGS: %w", err)
	}
	conf, _, err := allocator.LoadIPAMConfig(r.Config, r.Args)
	if err == nil {
		err = noneEmpty(conf.Ranges)
	}
	if err != nil {
		return nil, plugin.Errorf(types.ErrInvalidNetworkConfig, "network %q: ipam: %w", r.Name, err)
	}
	c := &hostLocalConfig{resolvConf: conf.ResolvConf, routes: conf.Routes, sets: conf.Ranges}
	c.dir = filepath.Join(cmp.Or(conf.DataDir, defaultDataDir), r.Name)
	for _, addr := range conf.IPArgs {
		if !slices.ContainsFunc(c.requested, addr.Equal) {
			c.requested = append(c.requested, addr)
		}
	}
	return c, nil
}

// noneEmpty refuses a range without addresses, such as one that begins with the broadcast
// address: the allocator would leave it.
func noneEmpty(sets []allocator.RangeSet) error {
	for i, set := range sets {
		for _, r := range set {
			if bytes.Compare(r.RangeStart, r.RangeEnd) > 0 {
				return fmt.Errorf("range set %d: the range from %s to %s in the subnet %s is empty", i, r.RangeStart, r.RangeEnd, (*net.IPNet)(&r.Subnet))
			}
		}
	}
	return nil
}

// sample returns the first address of every range, in the form of a result.
func (c *hostLocalConfig) sample() (ips []*types100.IPConfig) {
	for _, set := range c.sets {
		for _, r := range set {
			ips = append(ips, &types100.IPConfig{Address: net.IPNet{IP: r.RangeStart, Mask: r.Subnet.Mask}, Gateway: r.Gateway})
		}
	}
	return ips
}

// parseResolvConf reads a resolver's configuration, resolv.conf(5):
//
//	nameserver 10.1.0.53
//	search example.org example.net
//	options ndots:2
func parseResolvConf(text string) types.DNS {
	var dns types.DNS
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 || strings.ContainsRune("#;", rune(fields[0][0])) {
			continue
		}
		switch fields[0] {
		case "nameserver":
			dns.Nameservers = append(dns.Nameservers, fields[1])
		case "domain":
			dns.Domain = fields[1]
		case "search":
			dns.Search = append(dns.Search, fields[1:]...)
		case "options":
			dns.Options = append(dns.Options, fields[1:]...)
		}
	}
	return dns
}

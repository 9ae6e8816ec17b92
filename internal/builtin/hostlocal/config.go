package hostlocal

import (
	"cmp"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/embedcni/cni/plugin"
)

// defaultDataDir is the reference plugin's default directory for addresses.
const defaultDataDir = "/var/lib/cni/networks"

// config is a validated configuration.
type config struct {
	dir        string // directory of the network
	resolvConf string
	routes     []*types.Route
	sets       []rangeSet
	requested  []netip.Addr // without duplicates
}

// netConf is the part of a request configuration that host-local reads. The
// range at the top level of ipam is older than range sets.
type netConf struct {
	IPAM *struct {
		rangeConf
		Routes     []*types.Route `json:"routes"`
		DataDir    string         `json:"dataDir"`
		ResolvConf string         `json:"resolvConf"`
		Ranges     [][]rangeConf  `json:"ranges"`
	} `json:"ipam"`
	RuntimeConfig struct {
		IPRanges [][]rangeConf `json:"ipRanges"`
		IPs      []address     `json:"ips"`
	} `json:"runtimeConfig"`
	Args struct {
		CNI struct {
			IPs []address `json:"ips"`
		} `json:"cni"`
	} `json:"args"`
}

// envArgs are CNI_ARGS. The fields have the names of the arguments.
type envArgs struct {
	types.CommonArgs
	IP address
}

// address is an address with an optional prefix length, which is ignored.
type address struct{ netip.Addr }

// UnmarshalText parses "10.1.0.7" and "10.1.0.7/24".
func (a *address) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*a = address{}
		return nil
	}
	var addr netip.Addr
	prefix, err := netip.ParsePrefix(string(text))
	if err == nil {
		addr = prefix.Addr()
	} else {
		addr, err = netip.ParseAddr(string(text))
	}
	if err != nil || addr.Zone() != "" {
		return fmt.Errorf("%q is no IP address", text)
	}
	a.Addr = addr.Unmap()
	return nil
}

// parse reads the configuration of a request.
func parse(r *plugin.Request) (*config, error) {
	var n netConf
	if err := r.Decode(&n); err != nil {
		return nil, err
	}
	if n.IPAM == nil {
		return nil, plugin.Errorf(types.ErrInvalidNetworkConfig, "network %q: the configuration has no ipam", r.Name)
	}
	c := &config{resolvConf: n.IPAM.ResolvConf, routes: n.IPAM.Routes}
	c.dir = filepath.Join(cmp.Or(n.IPAM.DataDir, defaultDataDir), r.Name)
	var err error
	if c.requested, err = requested(n, r.Args); err != nil {
		return nil, err
	}
	sets := n.RuntimeConfig.IPRanges
	if n.IPAM.Subnet.IsValid() {
		sets = append(sets, []rangeConf{n.IPAM.rangeConf})
	}
	if c.sets, err = rangeSets(append(sets, n.IPAM.Ranges...), r.CNIVersion); err != nil {
		return nil, plugin.Errorf(types.ErrInvalidNetworkConfig, "network %q: ipam: %w", r.Name, err)
	}
	return c, nil
}

// Requested returns the addresses that a request asks for, from all three places, and the
// directory in which they are reserved. It returns none if the request is invalid.
func Requested(r *plugin.Request) (dir string, addrs []netip.Addr) {
	c, err := parse(r)
	if err != nil {
		return "", nil
	}
	return c.dir, c.requested
}

// requested returns the addresses that the caller requests, from all three
// places.
func requested(n netConf, args string) ([]netip.Addr, error) {
	var all []address
	var e envArgs
	if err := types.LoadArgs(args, &e); err != nil {
		return nil, plugin.Errorf(types.ErrInvalidEnvironmentVariables, "CNI_ARGS: %w", err)
	}
	if e.IP.IsValid() {
		all = append(all, e.IP)
	}
	all = append(append(all, n.Args.CNI.IPs...), n.RuntimeConfig.IPs...)
	var unique []netip.Addr
	for _, a := range all {
		if !a.IsValid() {
			return nil, plugin.Errorf(types.ErrInvalidNetworkConfig, "ips: an address that is requested is empty")
		}
		if !slices.Contains(unique, a.Addr) {
			unique = append(unique, a.Addr)
		}
	}
	return unique, nil
}

// rangeSets validates all sets. Sets must not overlap.
func rangeSets(confs [][]rangeConf, cniVersion string) ([]rangeSet, error) {
	if len(confs) == 0 {
		return nil, fmt.Errorf("no ranges are given: set subnet or ranges")
	}
	var sets []rangeSet
	perFamily := make(map[int]int)
	for i, conf := range confs {
		set, err := canonicalSet(conf)
		if err != nil {
			return nil, fmt.Errorf("range set %d: %w", i, err)
		}
		for j, other := range sets {
			if set.overlaps(other) {
				return nil, fmt.Errorf("range set %d overlaps with %d: %s and %s", j, i, other, set)
			}
		}
		sets = append(sets, set)
		perFamily[set[0].first.BitLen()]++
	}
	// CNI specification 0.2.0: a result has one address of each family.
	for _, n := range perFamily {
		if several, err := version.GreaterThanOrEqualTo(cniVersion, "0.3.0"); n > 1 && (err != nil || !several) {
			return nil, fmt.Errorf("cniVersion %q has no more than one address of a family, and there are %d range sets", cniVersion, n)
		}
	}
	return sets, nil
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

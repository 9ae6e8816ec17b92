package ipam

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/embedcni/cni/internal/run/compare"
	"github.com/embedcni/cni/plugin"
)

// Static is the IPAM plugin "static": the configuration or the caller lists the addresses.
// It keeps no state.
type Static struct{}

// staticConfig is the part of the delegating plugin's configuration that static reads.
type staticConfig struct {
	IPAM *struct {
		Routes    []*types.Route `json:"routes"`
		Addresses []configured   `json:"addresses"`
		DNS       types.DNS      `json:"dns"`
	} `json:"ipam"`
	RuntimeConfig struct {
		IPs []string `json:"ips"`
	} `json:"runtimeConfig"`
	Args struct {
		CNI struct {
			IPs []string `json:"ips"`
		} `json:"cni"`
	} `json:"args"`
}

// configured has all fields of the reference plugin's type, in its order: a program may
// have written the configuration from that type, and encoding/json finds a key by its
// exact name, or else by the first name that differs in case alone. Address counts
// before Text.
type configured struct {
	Text    string `json:"address"`
	Gateway net.IP `json:"gateway"`
	Address net.IPNet
	Version string // of no effect
}

// prefix returns the address.
func (c configured) prefix() (netip.Prefix, error) {
	if c.Address.IP == nil {
		return parse("ipam.addresses", c.Text)
	}
	return parse("ipam.addresses", c.Address.String())
}

// environment are the settings in CNI_ARGS.
type environment struct {
	types.CommonArgs
	IP      types.UnmarshallableString `json:"ip,omitempty"`
	GATEWAY types.UnmarshallableString `json:"gateway,omitempty"`
}

// address is an address to assign, with its subnet.
type address struct {
	prefix  netip.Prefix
	gateway net.IP
}

// load reads the configuration and the addresses: those of the runtime, or of
// the arguments in the configuration, or else those in the configuration itself
// together with those in CNI_ARGS.
func load(r *plugin.Request) (*staticConfig, []address, error) {
	var c staticConfig
	if err := r.Decode(&c); err != nil {
		return nil, nil, err
	}
	if c.IPAM == nil {
		return nil, nil, invalid(`"ipam" is missing`)
	}
	// Read it even if it does not count, so that an error in it is reported.
	all, err := c.listed(r.Args)
	if err != nil {
		return nil, nil, err
	}
	for _, from := range []struct {
		field string
		ips   []string
	}{{"args.cni.ips", c.Args.CNI.IPs}, {"runtimeConfig.ips", c.RuntimeConfig.IPs}} {
		if len(from.ips) == 0 {
			continue
		}
		all = nil
		for _, text := range from.ips {
			p, err := parse(from.field, text)
			if err != nil {
				return nil, nil, err
			}
			all = append(all, address{prefix: p})
		}
	}
	return &c, all, onePerFamily(r.CNIVersion, all)
}

// listed returns the addresses of the configuration and of CNI_ARGS.
func (c *staticConfig) listed(args string) ([]address, error) {
	var all []address
	for _, a := range c.IPAM.Addresses {
		p, err := a.prefix()
		if err != nil {
			return nil, err
		}
		all = append(all, address{p, a.Gateway})
	}
	var env environment
	if err := types.LoadArgs(args, &env); err != nil {
		return nil, plugin.Errorf(types.ErrInvalidEnvironmentVariables, "CNI_ARGS: %w", err)
	}
	for _, text := range list(env.IP) {
		p, err := parse("IP in CNI_ARGS", text)
		if err != nil {
			return nil, err
		}
		all = append(all, address{prefix: p})
	}
	for _, text := range list(env.GATEWAY) {
		gateway, err := netip.ParseAddr(text)
		if err != nil {
			return nil, invalid("%q: %w", "GATEWAY in CNI_ARGS", err)
		}
		for i := range all {
			if all[i].prefix.Contains(gateway.Unmap()) {
				all[i].gateway = net.ParseIP(text)
			}
		}
	}
	return all, nil
}

func list(value types.UnmarshallableString) []string {
	if value == "" {
		return nil
	}
	all := strings.Split(string(value), ",")
	for i := range all {
		all[i] = strings.TrimSpace(all[i])
	}
	return all
}

func parse(field, text string) (netip.Prefix, error) {
	ip, subnet, err := net.ParseCIDR(text) // as the reference plugin does
	if err != nil {
		return netip.Prefix{}, invalid(`%q: %q is not an address with the length of its subnet, as in 10.1.0.2/24: %w`, field, text, err)
	}
	bits, size := subnet.Mask.Size()
	a, _ := netip.AddrFromSlice(ip) // has one of its lengths
	if size == 32 {
		return netip.PrefixFrom(a.Unmap(), bits), nil
	}
	p := netip.PrefixFrom(a, bits)
	if a.Is4In6() {
		if p.Bits() < 96 {
			return p, invalid(`%q: %q is an IPv4 address in the form of IPv6, whose length is at least 96`, field, text)
		}
		p = netip.PrefixFrom(a.Unmap(), p.Bits()-96)
	}
	return p, nil
}

func invalid(format string, args ...any) error {
	return plugin.Errorf(types.ErrInvalidNetworkConfig, format, args...)
}

// onePerFamily refuses addresses that results before version 0.3.0 could not
// contain.
func onePerFamily(cniVersion string, all []address) error {
	several, err := version.GreaterThanOrEqualTo(cniVersion, "0.3.0")
	if err != nil {
		return plugin.Errorf(types.ErrIncompatibleCNIVersion, "cniVersion: %w", err)
	}
	v4 := 0
	for _, a := range all {
		if a.prefix.Addr().Is4() {
			v4++
		}
	}
	if !several && (v4 > 1 || len(all)-v4 > 1) {
		return invalid("CNI version %s does not have more than one address per family", cniVersion)
	}
	return nil
}

// Add returns the addresses.
func (Static) Add(ctx context.Context, r *plugin.Request) (*types100.Result, error) {
	c, all, err := load(r)
	if err != nil {
		return nil, err
	}
	result := &types100.Result{CNIVersion: types100.ImplementedSpecVersion, Routes: c.IPAM.Routes, DNS: c.IPAM.DNS}
	for _, a := range all {
		result.IPs = append(result.IPs, &types100.IPConfig{
			Address: net.IPNet{IP: a.prefix.Addr().AsSlice(), Mask: net.CIDRMask(a.prefix.Bits(), a.prefix.Addr().BitLen())},
			Gateway: a.gateway,
		})
	}
	return result, nil
}

// Del does nothing.
func (Static) Del(context.Context, *plugin.Request) error { return nil }

// Check returns an error if the result has another gateway for an address than
// the configuration.
func (p Static) Check(ctx context.Context, r *plugin.Request) error { return compare.Check(ctx, r, p) }

// Compare compares the gateways of the result with those of the configuration. A
// configured address that is missing from the result was removed by a later
// plugin: Add returns all of them. There is nothing to repair.
func (Static) Compare(_ context.Context, r *plugin.Request, _ *compare.View) (all []compare.Difference, err error) {
	_, addresses, err := load(r)
	if err != nil {
		return nil, err
	}
	if r.PrevResult == nil {
		return nil, invalid("prevResult is missing: there is nothing to check against")
	}
	for _, a := range addresses {
		at := slices.IndexFunc(r.PrevResult.IPs, func(ip *types100.IPConfig) bool {
			return ip != nil && ip.Address.IP.Equal(a.prefix.Addr().AsSlice())
		})
		if at < 0 || a.gateway == nil {
			continue
		}
		if got := r.PrevResult.IPs[at].Gateway; !a.gateway.Equal(got) {
			all = append(all, compare.Difference{
				Kind: compare.Address, Object: fmt.Sprintf("gateway of %s", a.prefix), Wanted: a.gateway.String(), Found: got.String(),
				Err: fmt.Errorf("the gateway of address %s is %s, not %s", a.prefix, got, a.gateway),
				Why: "the result and the configuration differ",
			})
		}
	}
	return all, nil
}

// Status refuses a configuration that every Add refuses.
func (Static) Status(_ context.Context, r *plugin.Request) error {
	_, _, err := load(r)
	return err
}

// Sample is Add, which assigns nothing.
func (p Static) Sample(r *plugin.Request) (*types100.Result, error) {
	return p.Add(context.Background(), r)
}

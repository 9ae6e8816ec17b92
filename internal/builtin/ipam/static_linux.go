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

	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/run/contract"
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

// environment are the settings in CNI_ARGS.
type environment struct {
	types.CommonArgs
	IP      types.UnmarshallableString `json:"ip,omitempty"`
	GATEWAY types.UnmarshallableString `json:"gateway,omitempty"`
}

// load reads the configuration and the addresses: those of the runtime, or of
// the arguments in the configuration, or else those in the configuration itself
// together with those in CNI_ARGS.
func load(r *plugin.Request) (*staticConfig, []*types100.IPConfig, error) {
	var c staticConfig
	if err := r.Decode(&c); err != nil {
		return nil, nil, err
	}
	if c.IPAM == nil {
		return nil, nil, invalid(`"ipam" is missing`)
	}
	// Read it even if it does not count, so that an error in it is reported.
	all, err := c.listed(r.Args)
	if err == nil && len(c.Args.CNI.IPs) > 0 {
		all, err = parse("args.cni.ips", c.Args.CNI.IPs...)
	}
	if err == nil && len(c.RuntimeConfig.IPs) > 0 {
		all, err = parse("runtimeConfig.ips", c.RuntimeConfig.IPs...)
	}
	if err != nil {
		return nil, nil, err
	}
	return &c, all, onePerFamily(r.CNIVersion, all)
}

// listed returns the addresses of the configuration and of CNI_ARGS.
func (c *staticConfig) listed(args string) (all []*types100.IPConfig, err error) {
	for _, a := range c.IPAM.Addresses {
		if a.Address.IP != nil {
			a.Text = a.Address.String()
		}
		one, err := parse("ipam.addresses", a.Text)
		if err != nil {
			return nil, err
		}
		one[0].Gateway = a.Gateway
		all = append(all, one...)
	}
	var env environment
	if err := types.LoadArgs(args, &env); err != nil {
		return nil, plugin.Errorf(types.ErrInvalidEnvironmentVariables, "CNI_ARGS: %w", err)
	}
	more, err := parse("IP in CNI_ARGS", list(env.IP)...)
	if err != nil {
		return nil, err
	}
	all = append(all, more...)
	for _, text := range list(env.GATEWAY) {
		if _, err := netip.ParseAddr(text); err != nil {
			return nil, invalid("%q: %w", "GATEWAY in CNI_ARGS", err)
		}
		gateway := net.ParseIP(text)
		for _, ip := range all {
			if ip.Address.Contains(gateway) {
				ip.Gateway = gateway
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

// parse reads addresses, each with the length of its subnet.
func parse(field string, texts ...string) (all []*types100.IPConfig, err error) {
	for _, text := range texts {
		ip, subnet, err := net.ParseCIDR(text) // as the reference plugin does
		if err != nil {
			return nil, invalid(`%q: %q is not an address with the length of its subnet, as in 10.1.0.2/24: %w`, field, text, err)
		}
		p, err := links.Prefix(net.IPNet{IP: ip, Mask: subnet.Mask})
		if err != nil {
			return nil, invalid(`%q: %q is an IPv4 address in the form of IPv6, whose length is at least 96`, field, text)
		}
		all = append(all, &types100.IPConfig{Address: net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}})
	}
	return all, nil
}

func invalid(format string, args ...any) error {
	return plugin.Errorf(types.ErrInvalidNetworkConfig, format, args...)
}

// onePerFamily refuses addresses that results before version 0.3.0 could not
// contain.
func onePerFamily(cniVersion string, all []*types100.IPConfig) error {
	several, err := version.GreaterThanOrEqualTo(cniVersion, "0.3.0")
	if err != nil {
		return plugin.Errorf(types.ErrIncompatibleCNIVersion, "cniVersion: %w", err)
	}
	v4 := 0
	for _, ip := range all {
		if ip.Address.IP.To4() != nil {
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
	return &types100.Result{CNIVersion: types100.ImplementedSpecVersion, IPs: all, Routes: c.IPAM.Routes, DNS: c.IPAM.DNS}, nil
}

// Del does nothing.
func (Static) Del(context.Context, *plugin.Request) error { return nil }

// Check returns an error if the result has another gateway for an address than
// the configuration.
func (p Static) Check(ctx context.Context, r *plugin.Request) error { return contract.Check(ctx, r, p) }

// Compare compares the gateways of the result with those of the configuration. A
// configured address that is missing from the result was removed by a later
// plugin: Add returns all of them. There is nothing to repair.
func (Static) Compare(_ context.Context, r *plugin.Request, _ *contract.View) (all []contract.Difference, err error) {
	_, addresses, err := load(r)
	if err != nil {
		return nil, err
	}
	if r.PrevResult == nil {
		return nil, invalid("prevResult is missing: there is nothing to check against")
	}
	for _, want := range addresses {
		at := slices.IndexFunc(r.PrevResult.IPs, func(ip *types100.IPConfig) bool {
			return ip != nil && ip.Address.IP.Equal(want.Address.IP)
		})
		if at < 0 || want.Gateway == nil {
			continue
		}
		if got := r.PrevResult.IPs[at].Gateway; !want.Gateway.Equal(got) {
			all = append(all, contract.Difference{
				Kind: contract.Address, Object: fmt.Sprintf("gateway of %s", &want.Address), Wanted: want.Gateway.String(), Found: got.String(),
				Err: fmt.Errorf("the gateway of address %s is %s, not %s", &want.Address, got, want.Gateway),
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

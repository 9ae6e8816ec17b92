// Package veth has the plugins that connect a container by a veth pair, to a bridge or to
// the host alone: bridge and ptp.
package veth

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/kernel/netfilter"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/plugin"
)

// Config is the part of a configuration that these plugins share.
type Config struct {
	IPMasq        bool   `json:"ipMasq"`
	IPMasqBackend string `json:"ipMasqBackend"`
	MTU           int    `json:"mtu"`
	ipam.Config
}

// Validate returns an error that names the wrong field. As with the reference
// plugins, an unused backend may have any name.
func (c Config) Validate() error {
	if c.MTU < 0 {
		return plugin.Errorf(types.ErrInvalidNetworkConfig, `"mtu": %d is negative`, c.MTU)
	}
	if !c.IPMasq || slices.Contains([]string{"", iptables, "nftables"}, c.IPMasqBackend) {
		return nil
	}
	return plugin.Errorf(types.ErrInvalidNetworkConfig, `"ipMasqBackend": unknown backend %q: use "iptables" or "nftables"`, c.IPMasqBackend)
}

// iptables is the backend that only executables have.
const iptables = "iptables"

// OnlyExecutable returns an error if only the executable of a type carries out a
// configuration.
func OnlyExecutable(typ string, config json.RawMessage) error {
	var c Config
	if json.Unmarshal(config, &c) == nil && c.IPMasq && c.IPMasqBackend == iptables {
		return contract.OnlyExecutable(typ, `"ipMasqBackend": "iptables"`)
	}
	return nil // an Add reports an invalid configuration
}

// SetDNS replaces the DNS settings of the IPAM plugin if the configuration has
// any.
func (c Config) SetDNS(result *types100.Result) {
	if c.DNS.Nameservers != nil || c.DNS.Search != nil || c.DNS.Options != nil || c.DNS.Domain != "" {
		result.DNS = c.DNS
	}
}

// rules returns the masquerading rules for addresses.
func rules(r *plugin.Request, addrs []netip.Prefix) []netfilter.Rule {
	return netfilter.Owner{Network: r.Name, ContainerID: r.ContainerID, IfName: r.IfName}.PerAddress(netfilter.Masquerade, addrs)
}

// Masquerade masquerades the addresses of the result, if configured.
func (c Config) Masquerade(ctx context.Context, r *plugin.Request, result *types100.Result) error {
	if !c.IPMasq {
		return nil
	}
	return masqueradeError(contract.From(ctx).Firewalls(r.Host).Add(ctx, rules(r, addresses(result))...))
}

// masqueradeError names the field of the configuration in an error.
func masqueradeError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(`"ipMasq": %w`, err)
}

// Wants returns the masquerading rules of an attachment whose ADD ended with the
// previous result.
func Wants(r *plugin.Request) ([]netfilter.Rule, error) {
	var c Config
	err := r.Decode(&c)
	if err == nil {
		err = c.Validate()
	}
	if err != nil || !c.IPMasq || c.IPAM.Type == "" {
		return nil, err
	}
	return rules(r, addresses(contract.OwnResult(r))), nil
}

// CompareMasquerade compares the rules of [Config.Masquerade].
func CompareMasquerade(ctx context.Context, r *plugin.Request, v *contract.View) ([]contract.Difference, error) {
	want, err := Wants(r)
	if err != nil || want == nil {
		return nil, err
	}
	return contract.MissingRules(ctx, r, v, want, masqueradeError)
}

// addresses returns the addresses of a result, which may be nil, together with
// those found, each once.
func addresses(result *types100.Result, found ...netip.Prefix) (all []netip.Prefix) {
	for _, p := range append(contract.PrefixesOf(result), found...) {
		if p.Addr().IsGlobalUnicast() && !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return all
}

// Delete is DEL. It removes the addresses from the interface, so that their next
// owner does not meet them there, and releases them by the IPAM plugin. It
// deletes the pair and its rules together with other slow deletions of the
// kernel. It continues after an error.
func (c Config) Delete(ctx context.Context, r *plugin.Request) error {
	remove, found, err := open(ctx, r)
	errs := []error{err, ipam.Del(ctx, r, c.IPAM.Type)}
	if remove != nil {
		errs = append(errs, contract.From(ctx).Batch.Later(ctx, remove))
	}
	if c.IPMasq {
		err := contract.From(ctx).Firewalls(r.Host).Remove(ctx, rules(r, addresses(r.PrevResult, found...))...)
		errs = append(errs, masqueradeError(err))
	}
	return joined.Errors(errs...)
}

// open finds an end of the pair, removes its addresses and returns them, and a
// function that deletes the end. It looks for the container's end, or for the
// host's if the container's namespace is unknown. The function is nil if there is
// none.
func open(ctx context.Context, r *plugin.Request) (remove func(context.Context) error, found []netip.Prefix, err error) {
	ns, name := r.Container, r.IfName
	var host types100.Interface
	if ns == nil {
		if host = HostInterface(r.PrevResult, r.IfName); host.Name == "" || r.Host == nil {
			return nil, nil, nil
		}
		ns, name = r.Host, host.Name
	}
	given := contract.From(ctx)
	c, err := given.Conns.Borrow(ns)
	if err != nil {
		return nil, nil, err
	}
	link, err := c.Link(name)
	// An interface of the host with the right name is the pair's if it has the
	// pair's random hardware address.
	if links.NotFound(err) || err == nil && r.Container == nil && (link.Kind != "veth" || link.MAC.String() != host.Mac) {
		return nil, nil, c.Close()
	}
	if err != nil {
		return nil, nil, joined.Errors(err, c.Close())
	}
	have, err := c.Addresses(link.Index)
	for _, a := range have {
		found = append(found, a.Prefix)
		if !a.Addr().IsLinkLocalUnicast() {
			err = joined.Errors(err, c.DeleteAddress(link.Index, a.Prefix))
		}
	}
	return func(context.Context) error {
		err := c.Delete(link.Index)
		if err != nil {
			err = fmt.Errorf("delete interface %q: %w", name, err)
		}
		return joined.Errors(err, c.Close())
	}, found, err
}

// HostInterface returns the host's end of a pair in a result: among the
// interfaces without a sandbox, the one before the container's. It is empty if
// there is none.
func HostInterface(result *types100.Result, ifName string) types100.Interface {
	if result == nil {
		return types100.Interface{}
	}
	var last types100.Interface
	for _, i := range result.Interfaces {
		switch {
		case i == nil:
		case i.Sandbox == "":
			last = *i
		case i.Name == ifName:
			return last
		}
	}
	return types100.Interface{}
}

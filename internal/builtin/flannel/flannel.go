// Package flannel is the plugin flannel, which connects containers to a network of many
// hosts. flanneld leases a subnet for each host and has their packets sent to each other;
// the plugin has the container attached in that subnet, by the plugin bridge or another
// delegate.
//
// It takes the configuration of the reference plugin (flannel-io/cni-plugin), gives
// the delegate the same configuration, and keeps that in the same file, so that the DEL of
// either undoes the ADD of the other. The differences:
//   - CHECK and STATUS ask the delegate, and compare the lease with the container's
//     addresses. Those of the reference plugin do nothing.
//   - A CHECK and a DEL of the delegate get the result of the ADD.
//   - The file of a delegate whose DEL has failed stays, for the next DEL.
//   - A file that another network's ADD has written stays, and its delegate is not asked.
package flannel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/plainfile"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/plugin"
)

// Plugin is the plugin.
type Plugin struct {
	writing sync.Mutex // a file: the networks of a container are added in parallel
}

// Add has the delegate attach the container. Its configuration is kept before it runs.
func (p *Plugin) Add(ctx context.Context, r *plugin.Request) (*types100.Result, error) {
	f, err := parse(r)
	if err != nil {
		return nil, err
	}
	delegate, err := configure(f)
	if err != nil {
		return nil, err
	}
	synced, err := p.keep(f.File(r.ContainerID), delegate.Bytes)
	if err != nil {
		return nil, fmt.Errorf("keep the configuration for the DEL: %w", err)
	}
	result, err := r.Delegate(ctx, "ADD", delegate.Network.Type, delegate.Bytes)
	if err != nil {
		err = fmt.Errorf("delegate %q: %w", delegate.Network.Type, err)
	}
	if err = joined.Errors(err, <-synced); err != nil {
		return nil, err // the DEL that follows undoes an ADD
	}
	return result, nil
}

// Del has the delegate detach the container, if an ADD has kept its configuration.
func (*Plugin) Del(ctx context.Context, r *plugin.Request) error {
	f, err := parse(r)
	if err != nil {
		return err
	}
	kept, err := f.Kept(r.ContainerID)
	if kept == nil || err != nil {
		return err
	}
	if err := ask(ctx, r, "DEL", kept); err != nil {
		return err
	}
	if err := os.Remove(f.File(r.ContainerID)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	contract.From(ctx).Record.Released(f.DataDir)
	return nil
}

// Check compares the lease, and asks the delegate.
func (p *Plugin) Check(ctx context.Context, r *plugin.Request) error {
	moved, err := p.Compare(ctx, r, nil)
	if err != nil {
		return err
	}
	if len(moved) > 0 {
		return moved[0].Err
	}
	delegate, err := p.Delegated(r)
	if err != nil {
		return err
	}
	return ask(ctx, r, "CHECK", delegate)
}

// Status returns an error with the code 50 if there is no lease yet, and asks the delegate.
func (*Plugin) Status(ctx context.Context, r *plugin.Request) error {
	f, err := parse(r)
	if err != nil {
		return err
	}
	if _, err := readLease(f.SubnetFile); err != nil {
		return plugin.Errorf(notAvailable, "%w", err)
	}
	delegate, err := configure(f)
	if err != nil {
		return err
	}
	return ask(ctx, r, "STATUS", delegate)
}

// notAvailable is the code with which STATUS says that an ADD would fail (CNI specification
// 1.1.0, section 5).
const notAvailable = 50

// Compare compares the lease with the container's addresses. The delegate's part is compared
// by itself.
func (*Plugin) Compare(_ context.Context, r *plugin.Request, _ *contract.View) (all []contract.Difference, err error) {
	f, err := parse(r)
	if err != nil || r.PrevResult == nil {
		return nil, err
	}
	now, err := readLease(f.SubnetFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // a flanneld that has stopped leaves its routes
	}
	if err != nil {
		return nil, err
	}
	kept, err := f.Kept(r.ContainerID)
	if kept == nil || err != nil {
		return nil, err
	}
	was := leasedTo(kept)
	for _, addr := range contract.AddressesOf(contract.OwnResult(r)) {
		ip := net.IP(addr.AsSlice())
		if subnet := containing(was, ip); subnet != nil && containing(now.subnets[:], ip) == nil {
			all = append(all, moved(addr.String(), subnet, now, f.SubnetFile))
		}
	}
	return all, nil
}

// moved is the difference of an address from the subnet of an earlier lease.
func moved(addr string, was *net.IPNet, now *lease, file string) contract.Difference {
	var subnets []string
	for _, subnet := range now.subnets {
		if subnet != nil {
			subnets = append(subnets, subnet.String())
		}
	}
	found := strings.Join(subnets, " and ")
	return contract.Difference{
		Kind: contract.Lease, Object: addr, Wanted: was.String(), Found: found,
		Err: fmt.Errorf("the address %s is in the subnet %s, which was this host's, and %s names %s now, so that other hosts "+
			"send its packets elsewhere: Remove and Setup attach the container again", addr, was, file, found),
		Why: "an address of the new subnet needs another ADD: Remove and Setup attach the container again",
	}
}

// Delegated implements [contract.Delegator]. Without a kept configuration it is that of an
// ADD now.
func (*Plugin) Delegated(r *plugin.Request) (*libcni.PluginConfig, error) {
	f, err := parse(r)
	if err != nil {
		return nil, err
	}
	delegate, err := f.Kept(r.ContainerID)
	if delegate == nil && err == nil {
		delegate, err = configure(f)
	}
	if err != nil {
		return nil, err
	}
	delegate.Bytes, err = withPrevious(r, delegate.Bytes)
	return delegate, err
}

func parse(r *plugin.Request) (*conflist.FlannelConf, error) {
	f, err := conflist.ParseFlannel(r.Config)
	if err != nil {
		return nil, plugin.Errorf(types.ErrDecodingFailure, "configuration of plugin %q: %w", r.Type, err)
	}
	return f, nil
}

// configure returns the configuration of the delegate for an ADD.
func configure(f *conflist.FlannelConf) (*libcni.PluginConfig, error) {
	l, err := readLease(f.SubnetFile)
	if err != nil {
		return nil, err
	}
	config, ipam, err := f.Delegated()
	if err != nil {
		return nil, plugin.Errorf(types.ErrInvalidNetworkConfig, "%w", err)
	}
	for key, value := range map[string]any{"ipMasq": !*l.ipMasq, "mtu": *l.mtu} {
		if _, ok := config[key]; !ok {
			config[key] = value
		}
	}
	routes := []types.Route{}
	if own, ok := f.IPAM["routes"]; ok {
		if err := json.Unmarshal(own, &routes); err != nil {
			return nil, plugin.Errorf(types.ErrInvalidNetworkConfig, `"routes" of "ipam": %w`, err)
		}
	}
	var ranges [][]subnetRange
	for family, subnet := range l.subnets {
		if subnet != nil {
			ranges = append(ranges, []subnetRange{{subnet.String()}})
		}
		for _, n := range l.networks[family] {
			routes = append(routes, types.Route{Dst: *n})
		}
	}
	ipam["ranges"], ipam["routes"] = ranges, routes
	delegate, err := conflist.Configured(config)
	if err != nil {
		return nil, plugin.Errorf(types.ErrInvalidNetworkConfig, "%w", err)
	}
	return delegate, nil
}

// subnetRange is a range of host-local.
type subnetRange struct {
	Subnet string `json:"subnet"`
}

// leasedTo returns the subnets that a delegate was given.
func leasedTo(delegate *libcni.PluginConfig) (subnets []*net.IPNet) {
	var c struct {
		IPAM struct {
			Ranges [][]subnetRange `json:"ranges"`
		} `json:"ipam"`
	}
	_ = json.Unmarshal(delegate.Bytes, &c) // a field of another kind was not written by flannel
	for _, one := range slices.Concat(c.IPAM.Ranges...) {
		if _, subnet, err := net.ParseCIDR(one.Subnet); err == nil {
			subnets = append(subnets, subnet)
		}
	}
	return subnets
}

// containing returns the subnet with an address, or nil.
func containing(subnets []*net.IPNet, ip net.IP) *net.IPNet {
	for _, subnet := range subnets {
		if subnet != nil && subnet.Contains(ip) {
			return subnet
		}
	}
	return nil
}

// keep writes the file. synced gets the error of its way to the disk, which takes about as
// long as the delegate.
func (p *Plugin) keep(path string, config []byte) (synced <-chan error, err error) {
	p.writing.Lock()
	defer p.writing.Unlock()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	file, err := plainfile.Open(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	if _, err := file.Write(config); err != nil {
		return nil, joined.Errors(err, file.Close(), os.Remove(path))
	}
	done := make(chan error, 1)
	go func() { done <- joined.Errors(file.Sync(), file.Close()) }()
	return done, nil
}

// ask asks the delegate for a verb that has no result.
func ask(ctx context.Context, r *plugin.Request, verb string, delegate *libcni.PluginConfig) error {
	config, err := withPrevious(r, delegate.Bytes)
	if err != nil {
		return err
	}
	if _, err := r.Delegate(ctx, verb, delegate.Network.Type, config); err != nil {
		return fmt.Errorf("delegate %q: %w", delegate.Network.Type, err)
	}
	return nil
}

// withPrevious returns a configuration of the delegate with the result in the request's own.
func withPrevious(r *plugin.Request, config json.RawMessage) (json.RawMessage, error) {
	var from, to map[string]json.RawMessage
	if err := joined.Errors(json.Unmarshal(r.Config, &from), json.Unmarshal(config, &to)); err != nil {
		return nil, plugin.Errorf(types.ErrDecodingFailure, "%w", err)
	}
	if previous, ok := from["prevResult"]; ok {
		to["prevResult"] = previous
	}
	return json.Marshal(to)
}

package portmap

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/plugin"
)

// Check returns an error unless every port is forwarded.
func (p Plugin) Check(ctx context.Context, r *plugin.Request) error { return contract.Check(ctx, r, p) }

// Compare compares the rules of the forwarded ports, and the setting that lets packets
// from the host's loopback addresses leave.
func (Plugin) Compare(ctx context.Context, r *plugin.Request, v *contract.View) ([]contract.Difference, error) {
	c, err := parse(r, false)
	if err != nil {
		return nil, err
	}
	if r.PrevResult == nil {
		return nil, plugin.Errorf(types.ErrInvalidNetworkConfig, "plugin portmap: there is no previous result to check against")
	}
	if c.none() {
		return nil, nil
	}
	found, err := contract.MissingRules(ctx, r, v, c.rules, nil)
	if err != nil {
		return nil, err
	}
	localnet, err := c.compareLocalnet(ctx, r, v)
	return append(found, localnet...), err
}

// compareLocalnet compares the setting of the interface that leads to the container, if
// that is the attachment's own: a bridge that was made again, or an end of a veth pair.
// Without it the route leads to an interface of the host's, whose setting is not ours. The
// kernel says which route it uses: the view may be a list of them.
func (c request) compareLocalnet(ctx context.Context, r *plugin.Request, v *contract.View) ([]contract.Difference, error) {
	to := c.to[0].Addr()
	if !c.snat || !to.Is4() {
		return nil, nil
	}
	var link links.Link
	there := false
	err := contract.On(ctx, r.Host, func(host *links.Conn) (err error) {
		link, there, err = interfaceTo(host, v.Host, to)
		return err
	})
	if err != nil || !there {
		return nil, err
	}
	want := localnetOf(link.Name)
	if link.Has(want) || !slices.ContainsFunc(r.PrevResult.Interfaces, func(i *types100.Interface) bool {
		return i != nil && i.Sandbox == "" && i.Name == link.Name
	}) {
		return nil, nil
	}
	return []contract.Difference{{
		Kind: contract.Sysctl, Object: want.Path, Wanted: want.Value, Found: "0", Shared: link.Kind == "bridge",
		Fix: func(ctx context.Context) error {
			return contract.On(ctx, r.Host, func(host *links.Conn) error {
				now, err := host.Link(link.Name)
				if err != nil {
					return err
				}
				return setLocalnet(host, now)
			})
		},
	}}, nil
}

// interfaceTo returns the host's interface that leads to an address. There is none if no
// route leads there, or if the list of interfaces is older than the route.
func interfaceTo(routes *links.Conn, host contract.Net, to netip.Addr) (link links.Link, there bool, err error) {
	index, err := links.InterfaceTo(routes, to)
	if err == nil && index == 0 {
		return link, false, nil
	}
	if err != nil {
		return link, false, fmt.Errorf("snat: route to %s: %w", to, err)
	}
	if link, err = host.LinkByIndex(index); links.NotFound(err) {
		return link, false, nil
	}
	if err != nil {
		return link, false, fmt.Errorf("snat: the host's interface to %s: %w", to, err)
	}
	return link, true, nil
}

// localnetOf returns the setting that lets packets from loopback addresses leave by an
// interface.
func localnetOf(name string) links.Sysctl {
	return links.Sysctl{Path: "net/ipv4/conf/" + name + "/route_localnet", Value: "1"}
}

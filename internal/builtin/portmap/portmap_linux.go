// Package portmap forwards ports of the host to the container.
package portmap

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/kernel/netfilter"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/plugin"
)

// Plugin is the plugin "portmap". It runs after a plugin that gives the
// container its addresses.
type Plugin struct{}

// Add forwards the ports, if there are any, and returns the previous result.
func (Plugin) Add(ctx context.Context, r *plugin.Request) (*types100.Result, error) {
	c, err := load(r)
	if err != nil {
		return nil, err
	}
	result, err := r.Chained()
	if err != nil {
		return nil, err
	}
	if c.none() {
		return result, nil
	}
	if to := c.to[0].Addr(); c.snat && to.Is4() {
		if err := routeLocalnet(ctx, r, to); err != nil {
			return nil, err
		}
	}
	if err := contract.From(ctx).Firewalls(r.Host).Add(ctx, c.rules...); err != nil {
		return nil, err
	}
	return result, nil
}

// Del stops forwarding. It needs no previous result, because it finds the
// container's rules by name.
func (Plugin) Del(ctx context.Context, r *plugin.Request) error {
	c, err := parse(r, true)
	if err != nil || len(c.rules) == 0 {
		return err
	}
	return contract.From(ctx).Firewalls(r.Host).Remove(ctx, c.rules...)
}

// Wants returns the rules of an attachment whose ADD ended with the previous result.
func Wants(r *plugin.Request) ([]netfilter.Rule, error) {
	c, err := parse(r, true)
	if err != nil || c.none() {
		return nil, err
	}
	return c.rules, nil
}

// routeLocalnet allows packets from the host's loopback addresses to leave by
// the interface that leads to the container. The kernel drops them elsewhere as
// martians. The setting stays, because others use the interface too. If the host
// has no route to the container, there is nothing to do.
func routeLocalnet(ctx context.Context, r *plugin.Request, container netip.Addr) error {
	return contract.On(ctx, r.Host, func(host *links.Conn) error {
		link, there, err := interfaceTo(host, host, container)
		if err != nil || !there {
			return err
		}
		return setLocalnet(host, link)
	})
}

// setLocalnet lets packets from loopback addresses leave by an interface. Usually they
// may already.
func setLocalnet(host *links.Conn, link links.Link) error {
	if link.Has(localnetOf(link.Name)) {
		return nil
	}
	if err := links.Set4(host, link.Index, "route_localnet", 1); err != nil {
		return fmt.Errorf("snat: let loopback addresses leave by interface %s: %w", link.Name, err)
	}
	return nil
}

// Status refuses a configuration that every Add refuses.
func (Plugin) Status(_ context.Context, r *plugin.Request) error {
	_, err := load(r)
	return err
}

// OnlyExecutable returns an error if only the executable carries out a configuration.
func (Plugin) OnlyExecutable(config json.RawMessage) error {
	var c conf
	if json.Unmarshal(config, &c) != nil {
		return nil // an Add reports an invalid configuration
	}
	only, err := c.onlyExecutable()
	if err != nil || only == "" {
		return nil
	}
	return contract.OnlyExecutable(conflist.Portmap, only)
}

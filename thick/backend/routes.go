package backend

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// routes says which default routes a network may make. The zero value leaves them to the
// network.
type routes struct {
	changed  bool
	gateways []netip.Addr // of its default routes, if changed
}

// route gives the default routes to the networks of an ADD that ask for them, if any does:
// they are removed from the configurations of the others, in both families, as Multus does
// afterwards in the kernel. Here the plugins themselves make and report the routes that
// the pod has, so that CHECK and a repair agree with it.
func (b *Backend) route(all []network) error {
	if !slices.ContainsFunc(all, func(n network) bool { return n.selection.DefaultRoute != nil }) {
		return nil
	}
	for i := range all {
		n := &all[i]
		gateways := n.selection.DefaultRoute
		if n.ifName == lo || gateways != nil && len(gateways) == 0 {
			continue // its own configuration decides
		}
		n.routes = routes{changed: true, gateways: gateways}
		config := n.config
		if config == nil {
			config = b.source(n.network)
		}
		changed, err := eachPlugin(config, n.routes.applyTo)
		if err != nil {
			return invalid("network %q: default route: %v", n.name, err)
		}
		n.config = changed
	}
	return nil
}

// source returns the configuration of a loaded network.
func (b *Backend) source(name string) []byte {
	for _, n := range b.runtime.GetConfig().Networks {
		if n.Config.Name == name {
			return []byte(n.Config.Source)
		}
	}
	return nil
}

// eachPlugin returns a configuration whose plugins are changed.
func eachPlugin(config []byte, change func(plugin map[string]json.RawMessage) error) ([]byte, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(config, &fields); err != nil {
		return nil, err
	}
	raw, isList := fields["plugins"]
	if !isList {
		if err := change(fields); err != nil {
			return nil, err
		}
		return json.Marshal(fields)
	}
	var plugins []map[string]json.RawMessage
	if err := json.Unmarshal(raw, &plugins); err != nil {
		return nil, fmt.Errorf("plugins: %w", err)
	}
	for i, p := range plugins {
		if p == nil {
			return nil, fmt.Errorf("plugin %d is null", i)
		}
		if err := change(p); err != nil {
			return nil, fmt.Errorf("plugin %d: %w", i, err)
		}
	}
	var err error
	if fields["plugins"], err = json.Marshal(plugins); err != nil {
		return nil, err
	}
	return json.Marshal(fields)
}

// applyTo leaves these default routes alone to a plugin. It changes the two fields by which the
// reference plugins make default routes: isDefaultGateway, also of flannel's delegate, and the
// routes of the ipam object.
func (r routes) applyTo(plugin map[string]json.RawMessage) error {
	isNoDefaultGateway(plugin)
	if raw, has := plugin["delegate"]; has {
		var delegate map[string]json.RawMessage
		if err := json.Unmarshal(raw, &delegate); err != nil {
			return fmt.Errorf("delegate: %w", err)
		}
		isNoDefaultGateway(delegate)
		plugin["delegate"], _ = json.Marshal(delegate) // valid JSON
	}
	raw, has := plugin["ipam"]
	if !has {
		return nil
	}
	var ipam map[string]json.RawMessage
	if err := json.Unmarshal(raw, &ipam); err != nil {
		return fmt.Errorf("ipam: %w", err)
	}
	if len(ipam) == 0 {
		return nil
	}
	var list, kept []json.RawMessage
	if raw, has := ipam["routes"]; has {
		if err := json.Unmarshal(raw, &list); err != nil {
			return fmt.Errorf("ipam.routes: %w", err)
		}
	}
	for _, raw := range list {
		var route types.Route
		if err := json.Unmarshal(raw, &route); err != nil {
			return fmt.Errorf("ipam.routes: %w", err)
		}
		if !isDefaultRoute(&route) {
			kept = append(kept, raw)
		}
	}
	for _, gateway := range r.gateways {
		dst := "0.0.0.0/0"
		if gateway.Is6() {
			dst = "::/0"
		}
		kept = append(kept, json.RawMessage(fmt.Sprintf(`{"dst": %q, "gw": %q}`, dst, gateway)))
	}
	var err error
	if ipam["routes"], err = json.Marshal(append([]json.RawMessage{}, kept...)); err != nil {
		return err
	}
	plugin["ipam"], err = json.Marshal(ipam)
	return err
}

// isNoDefaultGateway leaves of isDefaultGateway the isGateway that it includes.
func isNoDefaultGateway(plugin map[string]json.RawMessage) {
	if bytes.Equal(plugin["isDefaultGateway"], []byte("true")) {
		plugin["isDefaultGateway"], plugin["isGateway"] = json.RawMessage("false"), json.RawMessage("true")
	}
}

func isDefaultRoute(route *types.Route) bool {
	length, _ := route.Dst.Mask.Size()
	return length == 0 && (route.Dst.IP == nil || route.Dst.IP.IsUnspecified())
}

// verify returns an error if the plugins have made other default routes.
func (r routes) verify(result *types100.Result) error {
	if !r.changed {
		return nil
	}
	wanted := map[string]bool{}
	for _, gateway := range r.gateways {
		wanted[gateway.String()] = true
	}
	for _, route := range result.Routes {
		if !isDefaultRoute(route) {
			continue
		}
		if !wanted[route.GW.String()] {
			return invalid("its plugins make a default route by %v, and the pod has asked for others", route.GW)
		}
		delete(wanted, route.GW.String())
	}
	for gateway := range wanted {
		return invalid("its plugins did not make the default route by %s", gateway)
	}
	return nil
}

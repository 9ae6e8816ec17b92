package backend

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/thick/multinet"
	"github.com/embedcni/cni/thick/server"
)

// network is a network of a request, with what is wanted of its attachment.
type network struct {
	name    string // in the status
	network string // in the configuration
	ifName  string
	config  []byte   // nil: the network is loaded
	plugins []string // their types, of a loaded network

	isDefault  bool
	prevResult json.RawMessage
	runtime    map[string]json.RawMessage // runtimeConfig: capabilities of the default network

	selection multinet.Selection
	routes    routes
	device    device
}

// requestConfig are the fields of a request's configuration that say what to attach.
type requestConfig struct {
	Delegates     []json.RawMessage          `json:"delegates"`
	Plugins       json.RawMessage            `json:"plugins"`
	PrevResult    json.RawMessage            `json:"prevResult"`
	RuntimeConfig map[string]json.RawMessage `json:"runtimeConfig"`
	Namespace     string                     `json:"multusNamespace"`
}

// inRequest returns the networks that a request's configuration has, or the loaded ones.
func (b *Backend) inRequest(r *server.Request) ([]network, error) {
	var c requestConfig
	if err := json.Unmarshal(r.Config, &c); err != nil {
		return nil, invalid("%v", err)
	}
	if bytes.Equal(c.PrevResult, []byte("null")) {
		c.PrevResult = nil
	}
	var all []network
	var err error
	switch {
	case c.Delegates != nil && c.Plugins != nil:
		return nil, invalid("it has both delegates and plugins")
	case c.Delegates != nil:
		all, err = delegates(c.Delegates, r)
	case c.Plugins != nil:
		all, err = pluginList(r)
	default:
		all, err = b.loaded(r)
	}
	if err != nil {
		return nil, err
	}
	for i := range all {
		if n := &all[i]; n.isDefault {
			n.runtime, n.prevResult = c.RuntimeConfig, c.PrevResult
		}
	}
	return all, nil
}

// delegates returns the networks in the field of that name.
func delegates(configs []json.RawMessage, r *server.Request) (all []network, err error) {
	for i, raw := range configs {
		config, name, err := complete(raw, r)
		if err != nil {
			return nil, invalid("delegate %d: %v", i, err)
		}
		n := network{name: name, network: name, ifName: fmt.Sprintf("net%d", i), config: config}
		if i == 0 {
			n.isDefault, n.ifName = true, r.IfName
		}
		all = append(all, n)
	}
	if all == nil {
		return nil, invalid("it has an empty list of delegates")
	}
	return all, nil
}

// complete gives a configuration the request's name and version if it has none.
func complete(config json.RawMessage, r *server.Request) (completed []byte, name string, err error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(config, &fields); err != nil {
		return nil, "", err
	}
	if fields == nil {
		return nil, "", fmt.Errorf("not an object")
	}
	if raw, has := fields["name"]; has {
		if err := json.Unmarshal(raw, &name); err != nil {
			return nil, "", fmt.Errorf("name: %w", err)
		}
	}
	changed := false
	set := func(key, value string) {
		fields[key], _ = json.Marshal(value) // a string
		changed = true
	}
	if name == "" {
		name = r.Network
		set("name", name)
	}
	if fields["cniVersion"] == nil && fields["cniVersions"] == nil {
		set("cniVersion", r.CNIVersion)
	}
	if !changed {
		return config, name, nil
	}
	completed, err = json.Marshal(fields)
	return completed, name, err
}

// pluginList returns the default network from a request that is a list of plugins.
func pluginList(r *server.Request) ([]network, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(r.Config, &fields); err != nil {
		return nil, invalid("%v", err)
	}
	list := map[string]json.RawMessage{}
	for _, key := range []string{"cniVersion", "name", "plugins", "disableCheck", "disableGC"} {
		if value, has := fields[key]; has {
			list[key] = value
		}
	}
	config, err := json.Marshal(list)
	return []network{{name: r.Network, network: r.Network, ifName: r.IfName, config: config, isDefault: true}}, err
}

// loaded returns the loaded networks, or the loopback alone for the interface lo.
func (b *Backend) loaded(r *server.Request) (all []network, err error) {
	extra := 0
	for _, n := range b.runtime.GetConfig().Networks {
		one := network{name: n.Config.Name, network: n.Config.Name, ifName: n.IFName, plugins: typesOf(n.Config)}
		switch {
		case n.IFName == lo:
		case r.IfName == lo:
			continue
		case extra == 0:
			one.isDefault, one.ifName, extra = true, r.IfName, 1
		default:
			one.ifName = fmt.Sprintf("net%d", extra)
			extra++
		}
		all = append(all, one)
	}
	if r.IfName == lo && len(all) == 0 {
		return loopback(r)
	}
	return all, nil
}

// wanted returns the networks of an ADD: those of its configuration, and of the pod's
// annotation.
func (b *Backend) wanted(ctx context.Context, r *server.Request) ([]network, error) {
	if err := b.checkKeys(r); err != nil {
		return nil, err
	}
	all, err := b.inRequest(r)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, cni.ErrCNINotInitialized
	}
	if b.options.DefaultNetwork != nil && r.IfName != lo {
		if err := b.replaceDefault(ctx, r, all); err != nil {
			return nil, err
		}
	}
	if b.options.Networks != nil && r.IfName != lo {
		value, err := b.options.Networks(ctx, r)
		if err != nil {
			return nil, fmt.Errorf("networks of the pod: %w", err)
		}
		more, err := b.annotated(ctx, r, value, countExtra(all))
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
	}
	if err := b.assign(ctx, r, all); err != nil {
		return nil, err
	}
	return all, b.route(all)
}

// clusterNamespace has the networks of the cluster, if the configuration of a request does
// not say otherwise.
const clusterNamespace = "kube-system"

// replaceDefault puts the network of multinet.DefaultAnnotation in the place of the default
// one. What the runtime wants of its interface it wants of that network.
func (b *Backend) replaceDefault(ctx context.Context, r *server.Request, all []network) error {
	value, err := b.options.DefaultNetwork(ctx, r)
	if err != nil {
		return fmt.Errorf("default network of the pod: %w", err)
	}
	i := slices.IndexFunc(all, func(n network) bool { return n.isDefault })
	if strings.TrimSpace(value) == "" || i < 0 {
		return nil
	}
	var c requestConfig
	if err := json.Unmarshal(r.Config, &c); err != nil {
		return invalid("%v", err)
	}
	namespace := cmp.Or(c.Namespace, clusterNamespace)
	s, err := multinet.ParseDefault(value, namespace)
	if err != nil {
		return invalid("%v", err)
	}
	s.Open = s.Namespace == namespace
	n, err := b.selected(ctx, r, s, r.IfName)
	if err != nil {
		return err
	}
	n.isDefault, n.prevResult, n.runtime = true, all[i].prevResult, all[i].runtime
	all[i] = n
	return nil
}

// countExtra returns how many networks have an interface beside the default one.
func countExtra(all []network) (n int) {
	for _, one := range all {
		if !one.isDefault && one.ifName != lo {
			n++
		}
	}
	return n
}

// annotated returns the networks of a pod's annotation, of which extra others have names.
func (b *Backend) annotated(ctx context.Context, r *server.Request, value string, extra int) (all []network, err error) {
	selected, err := multinet.Parse(value, r.Pod.Namespace)
	if err != nil {
		return nil, invalid("%v", err)
	}
	for i, s := range selected {
		n, err := b.selected(ctx, r, s, fmt.Sprintf("net%d", extra+i+1))
		if err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, nil
}

// selected returns the network of an element of an annotation, with an interface of that name
// unless the element names one.
func (b *Backend) selected(ctx context.Context, r *server.Request, s multinet.Selection, ifName string) (n network, err error) {
	if b.options.Lookup == nil {
		return n, invalid("the pod asks for networks, and this daemon looks none up")
	}
	found, err := b.options.Lookup(ctx, r, s)
	if err != nil {
		return n, fmt.Errorf("network %s: %w", s.Network(), err)
	}
	completed, name, err := complete(found.Config, &server.Request{Network: s.Name, CNIVersion: r.CNIVersion})
	if err != nil {
		return n, invalid("network %s: %v", s.Network(), err)
	}
	b.warnOf(r, s)
	return network{
		name: s.Network(), network: name, config: completed, selection: s, ifName: cmp.Or(s.Interface, ifName),
		device: device{resource: found.Resource, id: s.DeviceID},
	}, nil
}

// warnOf logs the keys of an element that have no effect.
func (b *Backend) warnOf(r *server.Request, s multinet.Selection) {
	if len(s.Unknown) > 0 {
		b.options.Logger.Warn("keys of a pod's networks are not known, and have no effect",
			"pod", r.Pod.Namespace+"/"+r.Pod.Name, "network", s.Network(), "keys", s.Unknown)
	}
	if s.IPAMClaim != "" {
		b.options.Logger.Warn("ipam-claim-reference is not passed on; only plugins that read the pod's annotation know it",
			"pod", r.Pod.Namespace+"/"+r.Pod.Name, "network", s.Network(), "claim", s.IPAMClaim)
	}
}

// option returns the option of Setup that attaches the network.
func (n *network) option() cni.NamespaceOpts {
	opts := []cni.NamespaceOpts{cni.WithInterfaceName(n.ifName)}
	if n.ifName == lo && n.config == nil {
		opts = nil
	}
	for name, value := range n.runtime {
		opts = append(opts, cni.WithCapability(name, value))
	}
	opts = append(opts, n.attributes()...)
	if n.config == nil {
		return cni.WithNetwork(n.network, opts...)
	}
	if n.prevResult != nil {
		opts = append(opts, cni.WithPrevResult(n.prevResult))
	}
	return cni.WithNetworkConfig(n.config, opts...)
}

// attributes returns options for what the pod wants of the interface. Addresses and MAC
// are capabilities; a network whose plugins declare none gets them in CNI_ARGS, as from
// Multus. Of the others a network gets those that it declares, again as from Multus.
func (n *network) attributes() (opts []cni.NamespaceOpts) {
	s, declared := n.selection, declares(n.config)
	ips := s.AddressList()
	switch {
	case len(ips) > 0 && declared["ips"]:
		opts = append(opts, cni.WithCapabilityIPs(ips...))
	case len(ips) > 0:
		opts = append(opts, cni.WithArgs("IP", strings.Join(ips, ",")))
	}
	switch {
	case s.MAC != "" && declared["mac"]:
		opts = append(opts, cni.WithCapabilityMAC(s.MAC))
	case s.MAC != "":
		opts = append(opts, cni.WithArgs("MAC", s.MAC))
	}
	for key, value := range s.CNIArgs {
		opts = append(opts, cni.WithConfigArgs(key, value))
	}
	if s.InfinibandGUID != "" {
		opts = append(opts, cni.WithCapability("infinibandGUID", s.InfinibandGUID))
	}
	opts = append(opts, n.device.options(declared)...)
	if b := s.Bandwidth; b != nil {
		opts = append(opts, cni.WithCapabilityBandWidth(cni.BandWidth(*b)))
	}
	var ports []cni.PortMapping
	for _, p := range s.PortMappings {
		m := cni.PortMapping{HostPort: int32(p.HostPort), ContainerPort: int32(p.ContainerPort), Protocol: p.Protocol}
		if p.HostIP.IsValid() {
			m.HostIP = p.HostIP.String()
		}
		ports = append(ports, m)
	}
	if ports != nil {
		opts = append(opts, cni.WithCapabilityPortMap(ports))
	}
	return opts
}

// declares returns the capabilities that a plugin of a configuration declares.
func declares(config []byte) map[string]bool {
	type plugin struct {
		Capabilities map[string]bool `json:"capabilities"`
	}
	var list struct {
		plugin
		Plugins []plugin `json:"plugins"`
	}
	found := map[string]bool{}
	_ = json.Unmarshal(config, &list) // a configuration that is none is refused when it is used
	for _, p := range append(slices.Clone(list.Plugins), list.plugin) {
		for name, set := range p.Capabilities {
			found[name] = found[name] || set
		}
	}
	return found
}

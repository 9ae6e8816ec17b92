package cni

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/conflist"
	"github.com/embedcni/cni/internal/record"
)

// plan makes the attachments for a verb: which networks, with which interface names,
// arguments and capabilities.
func (op *operation) plan(ns *Namespace, verb string) (all []*attachment, err error) {
	selected, err := op.selected(ns)
	errs := []error{err}
	taken := map[string]string{}
	for _, sel := range selected {
		if verb == "DEL" && !sel.attachable(ns) {
			continue
		}
		a, err := op.newAttachment(ns, sel)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if other, ok := taken[a.IfName]; ok {
			errs = append(errs, fmt.Errorf("networks %q and %q both want interface %s: %w",
				other, sel.network, a.IfName, ErrInvalidArgument))
		}
		taken[a.IfName] = sel.network
		all = append(all, a)
	}
	if verb == "ADD" {
		errs = append(errs, op.undeclared(ns.id, all))
	}
	return all, join(errs...)
}

// attachable reports whether the container can have been attached to a network,
// as far as the names allow. A wrong name that the caller gives is an error; a
// network that is merely loaded beside is passed over by a removal.
func (sel selection) attachable(ns *Namespace) bool {
	if sel.network == "" {
		return false
	}
	if sel.ifName != "" && validateIfName(sel.ifName) != nil {
		return true // newAttachment says what is wrong
	}
	name := cmp.Or(sel.ifName, sel.of.ifName)
	return validateIfName(name) == nil && validateAttachmentName(sel.network, string(ns.id), name) == nil
}

func (op *operation) newAttachment(ns *Namespace, sel selection) (*attachment, error) {
	n := sel.of
	name := cmp.Or(sel.ifName, n.ifName)
	if err := conflist.RequireName(n.config); err != nil {
		return nil, fmt.Errorf("network for interface %s: %w: %w", name, err, ErrInvalidConfig)
	}
	if err := validateIfName(name); err != nil {
		return nil, fmt.Errorf("interface name %q: %w", name, err)
	}
	if err := validateAttachmentName(n.config.Name, string(ns.id), name); err != nil {
		return nil, err
	}
	args, err := sortedArgs(merge(ns.args, sel.args))
	if err != nil {
		return nil, fmt.Errorf("network %q: %w", sel.network, err)
	}
	capabilities, err := wireCapabilities(merge(ns.capabilityArgs, sel.capabilityArgs))
	if err != nil {
		return nil, fmt.Errorf("network %q: %w", sel.network, err)
	}
	a := &attachment{op: op, network: n}
	a.ConfigArgs = merge(ns.configArgs, sel.configArgs)
	a.RuntimeConf = libcni.RuntimeConf{
		ContainerID: string(ns.id), IfName: name, Args: args, CapabilityArgs: capabilities,
	}
	return a, nil
}

// merge lays the values for one network over those for all.
func merge[V any](all, one map[string]V) map[string]V {
	merged := maps.Clone(all)
	if merged == nil {
		merged = map[string]V{}
	}
	maps.Copy(merged, one)
	return merged
}

// undeclared looks for capabilities that would have no effect, because no
// plugin of a network they were given for declares them.
func (s *snapshot) undeclared(id record.ID, attachments []*attachment) error {
	given, declared := map[string]bool{}, map[string]bool{}
	for _, a := range attachments {
		for name, value := range a.CapabilityArgs {
			given[name] = given[name] || !isEmpty(value)
			declared[name] = declared[name] || a.network.declares(name)
		}
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if !given[name] || declared[name] {
			continue
		}
		if s.strictCaps {
			errs = append(errs, fmt.Errorf("capability %q is declared by no plugin: %w", name, ErrInvalidArgument))
			continue
		}
		s.logger.Warn("capability is declared by no plugin and has no effect", "capability", name, "container", id)
	}
	return join(errs...)
}

func (n *Network) declares(capability string) bool {
	return slices.ContainsFunc(n.config.Plugins, func(p *libcni.PluginConfig) bool {
		return p.Network.Capabilities[capability]
	})
}

// isEmpty tells whether a capability asks for nothing, as an empty list of
// ports does.
func isEmpty(value any) bool {
	if value == nil {
		return true
	}
	switch v := reflect.ValueOf(value); v.Kind() {
	case reflect.Slice, reflect.Map, reflect.String:
		return v.Len() == 0
	default:
		return false
	}
}

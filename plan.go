package cni

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/conflist"
	"github.com/embedcni/cni/internal/record"
)

// plan makes the attachments for a verb: their networks, interface names,
// arguments and capabilities.
func (op *operation) plan(ns *Namespace, verb string) (all attachments, err error) {
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

// attachable reports whether the names allow that the container was attached to
// a network. A wrong name from the caller is an error; a removal skips a network
// that is merely loaded.
func (sel selection) attachable(ns *Namespace) bool {
	if sel.network == "" {
		return false
	}
	if sel.ifName != "" && validateIfName(sel.ifName) != nil {
		return true // newAttachment returns the error
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
	metadata := merge(ns.metadata, sel.metadata)
	if err := checkMetadata(metadata); err != nil {
		return nil, fmt.Errorf("network %q: %w", sel.network, err)
	}
	a := &attachment{op: op, network: n, metadata: metadata}
	a.ConfigArgs = merge(ns.configArgs, sel.configArgs)
	a.RuntimeConf = libcni.RuntimeConf{
		ContainerID: string(ns.id), IfName: name, Args: args, CapabilityArgs: capabilities,
	}
	return a, nil
}

// merge adds the values for one network to those for all, and prefers them.
func merge[V any](all, one map[string]V) map[string]V {
	merged := maps.Clone(all)
	if merged == nil {
		merged = map[string]V{}
	}
	maps.Copy(merged, one)
	return merged
}

// undeclared finds capabilities without effect, because no plugin of a network
// that they were given for declares them.
func (s *snapshot) undeclared(id record.ID, all attachments) error {
	given, declared := map[string]bool{}, map[string]bool{}
	for _, a := range all {
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

func (n *Network) declares(capability string) bool { return conflist.Declares(n.config, capability) }

// isEmpty reports whether a capability asks for nothing, for example an empty
// list of ports.
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

// Several configurations may have the same network name. The name selects all of
// them. The interface name selects one of them, as it identifies an attachment in the
// record and in libcni's cache.

// find returns the loaded networks with a name, in the order in which they were
// loaded.
func (s *snapshot) find(network string) ([]*Network, error) {
	var found []*Network
	var names []string
	for _, n := range s.networks {
		if n.config.Name == network {
			found = append(found, n)
		}
		if !slices.Contains(names, n.config.Name) {
			names = append(names, n.config.Name)
		}
	}
	if found == nil {
		return nil, fmt.Errorf("network %q is not loaded (loaded: %s): %w", network, strings.Join(names, ", "), ErrNotFound)
	}
	return found, nil
}

// shared reports whether another loaded network has the same name.
func (s *snapshot) shared(n *Network) bool {
	return slices.ContainsFunc(s.networks, func(other *Network) bool { return other != n && other.config.Name == n.config.Name })
}

// selected returns a selection for each network of a call: the networks that
// WithNetwork names, or all loaded networks.
func (s *snapshot) selected(ns *Namespace) (all []selection, err error) {
	if len(ns.selected) == 0 {
		for _, n := range s.networks {
			all = append(all, selection{network: n.config.Name, of: n})
		}
		return all, nil
	}
	var errs []error
	for _, sel := range ns.selected {
		some, err := s.expand(sel)
		all, errs = append(all, some...), append(errs, err)
	}
	return all, join(errs...)
}

// expand returns a copy of the selection for each network that it selects.
func (s *snapshot) expand(sel selection) ([]selection, error) {
	if sel.of != nil {
		return []selection{sel}, nil
	}
	found, err := s.find(sel.network)
	if err != nil {
		return nil, err
	}
	if len(found) > 1 && sel.ifName != "" {
		if found, err = loadedFor(found, sel.ifName); err != nil {
			return nil, err
		}
	}
	var all []selection
	for _, n := range found {
		sel.of = n
		all = append(all, sel)
	}
	return all, nil
}

// loadedFor returns the one network that was loaded for the interface, out of
// networks with the same name.
func loadedFor(networks []*Network, ifName string) (found []*Network, err error) {
	var names []string
	for _, n := range networks {
		names = append(names, n.ifName)
		if n.ifName == ifName {
			found = append(found, n)
		}
	}
	if len(found) == 1 {
		return found, nil
	}
	return nil, fmt.Errorf("%d of the %d configurations named %q were loaded for interface %q (loaded for: %s), and one must be meant: %w",
		len(found), len(networks), networks[0].config.Name, ifName, strings.Join(names, ", "), ErrInvalidArgument)
}

// narrow keeps only the attachments that the call selects.
func (op *operation) narrow(ns *Namespace) error {
	if len(ns.selected) == 0 {
		return nil
	}
	var kept attachments
	for _, sel := range ns.selected {
		found := false
		for _, a := range op.attachments {
			if sel.means(a) {
				kept = append(kept, a)
				found = true
			}
		}
		if _, err := op.find(sel.network); !found && err != nil {
			return err
		}
	}
	op.attachments = kept
	return nil
}

// means reports whether a selection selects an attachment that is on record.
func (sel selection) means(a *attachment) bool {
	switch {
	case a.network.config.Name != sel.network:
		return false
	case sel.of != nil && sel.of.snapshot.shared(sel.of):
		return a.IfName == sel.of.ifName
	}
	return sel.ifName == "" || sel.ifName == a.IfName
}

// about returns an attachment without a container, for verbs on a network. It has an
// interface name only if several loaded networks have the same name.
func (op *operation) about(n *Network) *attachment {
	a := &attachment{op: op, network: n}
	if op.shared(n) {
		a.IfName = n.ifName
	}
	return a
}

// unnamed returns an error if a loaded network has no name. No container can then be
// attached to the loaded networks.
func (s *snapshot) unnamed() error {
	for _, n := range s.networks {
		if err := conflist.RequireName(n.config); err != nil {
			return fmt.Errorf("network for interface %s: %w: %w", n.ifName, err, ErrInvalidConfig)
		}
	}
	return nil
}

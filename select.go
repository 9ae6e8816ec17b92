package cni

import (
	"fmt"
	"slices"
	"strings"

	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/conflist"
)

// Several configurations may have the same network name. The name selects all of
// them. The interface name selects one of them, as it identifies an attachment in the
// record and in libcni's cache.

// find returns the loaded networks with a name, in the order they were loaded.
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

// cachedAs returns the loaded network that libcni may have cached under that name and
// interface: the one that was loaded for the interface, or else the first with the
// name. It returns nil if no network has the name.
func (s *snapshot) cachedAs(network, ifName string) *Network {
	found, err := s.find(network)
	if err != nil {
		return nil
	}
	if one, err := loadedFor(found, ifName); err == nil {
		return one[0]
	}
	return found[0]
}

// means reports whether a selection selects an attachment that is on record.
func (op *operation) means(sel selection, a *attachment) bool {
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

// useCachedConfig gives a DEL without a record the configuration that libcni has
// cached with the attachment, if several loaded networks have its name. They may have
// been loaded in another order since the ADD.
func (a *attachment) useCachedConfig() {
	if !a.op.shared(a.network) {
		return
	}
	cached, err := chain.AllCached(a.op.stateDir, a.ContainerID)
	if err != nil {
		a.op.logger.Warn("cached attachments cannot be listed", "container", a.ContainerID, "error", err)
		return
	}
	for _, c := range cached {
		if c.Network != a.network.config.Name || c.IfName != a.IfName {
			continue
		}
		if list, err := conflist.Parse(c.Config); err == nil && len(list.Plugins) > 0 {
			a.network = &Network{config: list, ifName: a.IfName, snapshot: a.op.snapshot}
		}
	}
}

package cni

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/conflist"
	"github.com/embedcni/cni/internal/record"
)

// WithNetworkConfig attaches the container to a network that need not be loaded: config
// is its configuration, for this call, as a list of plugins or as that of a single
// plugin; see WithConfiguration. Its interface is the prefix with the number of networks
// that the call selects before it, unless opts have WithInterfaceName. Otherwise it is
// WithNetwork, and a call can have both, more than once. A call whose networks are all
// its own needs no loaded ones.
//
// The record keeps the configuration. Remove, Recover, GC, Health and Repair go by the
// record, in this and in later processes, whichever networks are loaded. Remove and Check
// select such an attachment by WithNetwork with the name in the configuration, or by this
// option, and without a selection they are for these attachments too. A container without
// a record is detached with config.
func WithNetworkConfig(config []byte, opts ...NamespaceOpts) NamespaceOpts {
	config = slices.Clone(config)
	return func(ns *Namespace) error {
		if ns.nested {
			return fmt.Errorf("a network's configuration inside WithNetwork: %w", ErrInvalidArgument)
		}
		ns.own = true
		list, _, err := conflist.ParseAny(config)
		if err == nil {
			err = conflist.RequireName(list)
		}
		if err != nil {
			return configError(err)
		}
		sel := selection{network: list.Name, list: list}
		if err := ns.nest(&sel, opts); err != nil {
			return err
		}
		ns.selected = append(ns.selected, sel)
		return nil
	}
}

// WithPrevResult gives the first plugin of a network a previous result, for a program that
// is itself a plugin in a list: the plugins continue where those before it have stopped
// (CNI specification 1.1.0, section 3, "prevResult"). result is of any version, and is
// converted to that of the configuration. The network's Result includes it, as a chained
// plugin's does. The interfaces in it are others' and are never deleted.
//
// The record keeps it for the DEL and CHECK of a plugin that has not answered. Other calls
// than Setup use it only for a container without a record. It is valid only inside
// WithNetworkConfig.
func WithPrevResult(result []byte) NamespaceOpts {
	result = slices.Clone(result)
	return func(ns *Namespace) error {
		if ns.list == nil {
			return fmt.Errorf("a previous result outside WithNetworkConfig: %w", ErrInvalidArgument)
		}
		prev, err := chain.Previous(result, ns.list.CNIVersion)
		if err != nil {
			return fmt.Errorf("previous result: %w: %w", withSentinel(err), ErrInvalidArgument)
		}
		ns.prev = prev
		return nil
	}
}

// nest applies the options of one network to its selection.
func (ns *Namespace) nest(sel *selection, opts []NamespaceOpts) error {
	inner := &Namespace{id: ns.id, path: ns.path, scope: newScope(), list: sel.list}
	inner.nested = true
	for _, o := range opts {
		if err := o(inner); err != nil {
			return fmt.Errorf("network %q: %w", sel.network, err)
		}
	}
	sel.scope = inner.scope
	return nil
}

// bound returns the selections of a call. Those with a configuration of the call have
// their network.
func (s *snapshot) bound(ns *Namespace) []selection {
	all := slices.Clone(ns.selected)
	for i := range all {
		if sel := &all[i]; sel.list != nil && sel.of == nil {
			sel.of = &Network{config: sel.list, ifName: cmp.Or(sel.ifName, ifName(s.opts.prefix, i)), snapshot: s}
		}
	}
	return all
}

// usable is ready for a call. One that selects only networks with a configuration of
// their own needs no loaded ones.
func (r *Runtime) usable(s *snapshot, ns *Namespace) error {
	if (ns.own || len(ns.selected) > 0) && !slices.ContainsFunc(ns.selected, func(sel selection) bool { return sel.list == nil }) {
		return nil
	}
	return r.ready(s)
}

// withRecorded returns the namespace of a Check with selections of the container's
// attachments on record whose configuration was that of their Setup: all of them, or
// those on networks that the call names and that are not loaded.
func (s *snapshot) withRecorded(ns *Namespace) (*Namespace, error) {
	rec, err := s.store.Records.Load(ns.id)
	if rec == nil || err != nil {
		return ns, nil // the call finds out why
	}
	recorded, err := s.ownOf(rec)
	if len(recorded) == 0 || err != nil {
		return ns, err
	}
	with := *ns
	if len(ns.selected) == 0 {
		with.selected = append(s.loadedBeside(recorded), recorded...)
		return &with, nil
	}
	with.selected = nil
	for _, sel := range s.bound(ns) {
		// An interface that is named is the record's, whatever is loaded under that name.
		if sel.list == nil && sel.of == nil && (sel.ifName != "" || !s.hasLoaded(sel.network)) {
			if found := sel.among(recorded); found != nil {
				with.selected = append(with.selected, found...)
				continue
			}
		}
		with.selected = append(with.selected, sel)
	}
	return &with, nil
}

// ownOf returns selections of the attachments on a record whose configuration was that of
// their Setup.
func (s *snapshot) ownOf(rec *record.Record) (all []selection, err error) {
	for n := range rec.Present() {
		if !n.OwnConfig {
			continue
		}
		list, err := conflist.Parse(n.Config)
		if err != nil {
			return nil, fmt.Errorf("recorded configuration of network %q: %w: %w", n.Network, err, ErrInvalidConfig)
		}
		all = append(all, selection{
			network: n.Network, list: list, of: &Network{config: list, ifName: n.IfName, snapshot: s}, scope: newScope(),
		})
	}
	return all, nil
}

// among returns the recorded attachments that a selection by name selects.
func (sel selection) among(recorded []selection) (found []selection) {
	for _, one := range recorded {
		if one.network == sel.network && (sel.ifName == "" || sel.ifName == one.of.ifName) {
			found = append(found, one)
		}
	}
	return found
}

// loadedBeside returns the loaded networks, but for those whose interface is a recorded
// attachment's.
func (s *snapshot) loadedBeside(recorded []selection) (all []selection) {
	for _, n := range s.networks {
		if !slices.ContainsFunc(recorded, func(one selection) bool { return one.of.ifName == n.ifName }) {
			all = append(all, selection{network: n.config.Name, of: n})
		}
	}
	return all
}

func (s *snapshot) hasLoaded(network string) bool {
	return slices.ContainsFunc(s.networks, func(n *Network) bool { return n.config.Name == network })
}

// callsNetworks returns the loaded networks, and those of the call's attachments that are
// not loaded.
func (op *operation) callsNetworks() []*Network {
	all := slices.Clone(op.e.networks)
	for _, a := range op.attachments {
		if !op.e.hasLoaded(a.network.config.Name) {
			all = append(all, a.network)
		}
	}
	return all
}

// StatusOf returns nil if containers can be attached to networks of these configurations,
// which need not be loaded: they are valid, and no plugin of one of version 1.1.0 or later
// returns an error for STATUS. Unlike StatusContext it asks each time. The error is
// ErrInvalidConfig, or the first plugin's *Error.
func (r *Runtime) StatusOf(ctx context.Context, configs ...[]byte) (err error) {
	s := r.current.Load()
	own, err := s.parseOwn(configs)
	if err != nil {
		return fmt.Errorf("status: %w", err)
	}
	host, err := s.store.Hosts.Open(s.opts.hostNetNS)
	if err != nil {
		return fmt.Errorf("status: %w", err)
	}
	defer func() { err = join(err, host.Close()) }()
	return s.statusOf(ctx, host, own)
}

// parseOwn reads configurations of one call.
func (s *snapshot) parseOwn(configs [][]byte) (all []*Network, err error) {
	for _, config := range configs {
		list, _, err := conflist.ParseAny(config)
		if err == nil {
			err = conflist.RequireName(list)
		}
		if err != nil {
			return nil, configError(err)
		}
		all = append(all, &Network{config: list, snapshot: s})
	}
	return all, nil
}

package cni

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/engine/engine"
	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/internal/store/record"
)

// Plan is what a Setup would ask of its networks; see Runtime.Plan.
type Plan struct {
	ContainerID string
	NetNS       string // the path
	NewNetNS    bool   // Setup would make the network namespace, see WithNewNetNS
	Owner       string // see WithOwner
	Attachments []PlannedAttachment

	// FirstPort and LastPort are the range from which [Runtime.Setup] would choose ports of the
	// host; see [WithPortRange].
	FirstPort, LastPort int

	prefix  string
	ignored []string // see Result.Ignored
}

// PlannedAttachment is a network of a Plan, with the parameters for its plugins.
type PlannedAttachment struct {
	Network string
	IfName  string
	Config  json.RawMessage // of the network, as one list
	// PrevResult is that of [WithPrevResult].
	PrevResult json.RawMessage `json:",omitempty"`

	// As the plugins get them. A capability that no plugin of the network declares
	// has no effect; see Result.Ignored.
	Args         map[string]string          `json:",omitempty"`
	Capabilities map[string]json.RawMessage `json:",omitempty"`
	ConfigArgs   map[string]json.RawMessage `json:",omitempty"`

	// Ports are the ports of the host that a plugin of the network would be asked to
	// forward.
	Ports []PortMapping `json:",omitempty"`
	// Requested are the ports of [WithPorts]. [Runtime.Setup] chooses the host ports that are 0.
	// Networks that would get the same ones have the same slice.
	Requested []Port            `json:",omitempty"`
	Metadata  map[string]string `json:",omitempty"`
}

// Plan validates the arguments of a Setup, and returns what [Runtime.Setup] would ask of each
// network, in order. It runs nothing, changes nothing, and opens neither the path nor a
// record, so that it needs no privileges and works on every system. Its errors are those
// of Setup: [ErrCNINotInitialized], [ErrInvalidArgument], [ErrInvalidConfig], [ErrNotFound] for a
// network that is not loaded.
//
// It is for dry runs, and for fakes of a Runtime: they cannot read [NamespaceOpts]
// otherwise.
func (r *Runtime) Plan(id, path string, opts ...NamespaceOpts) (*Plan, error) {
	l := r.current.Load()
	ns, err := newNamespace(id, path, opts...)
	if err := r.usable(l, ns); err != nil {
		return nil, err
	}
	var p *Plan
	if err == nil {
		p, err = l.plan(ns)
	}
	if err != nil {
		return nil, joined.Errorf("set up container %q: %w", id, err)
	}
	return p, nil
}

func (l *loaded) plan(ns *Namespace) (*Plan, error) {
	c, err := l.call(ns, "ADD")
	if err == nil {
		err = c.Err
	}
	if err != nil {
		return nil, err
	}
	p := &Plan{
		ContainerID: string(ns.id), NetNS: ns.path, NewNetNS: ns.makes, Owner: l.opts.Owner, prefix: l.opts.prefix,
		FirstPort: int(l.opts.PortRange.First), LastPort: int(l.opts.PortRange.Last), ignored: c.Ignored,
	}
	for _, a := range c.Planned {
		one, err := plannedAttachment(a)
		if err != nil {
			return nil, err
		}
		p.Attachments = append(p.Attachments, one)
	}
	return p, nil
}

func plannedAttachment(a *engine.Planned) (p PlannedAttachment, err error) {
	p = PlannedAttachment{Network: a.Network.Config.Name, IfName: a.IfName, Ports: asMappings(a.Mappings()), Metadata: a.Metadata}
	p.PrevResult, p.Args = json.RawMessage(a.Prev), argsOf(a.Args)
	if p.Config, p.Capabilities, p.ConfigArgs, err = a.Encoded(); err != nil {
		return p, err
	}
	if a.Ports != nil {
		p.Requested = asPorts(a.Ports.Asked)
	}
	return p, nil
}

// Result converts the results of the networks' plugins as [Runtime.Setup] does, one for each
// attachment in order. The error is [ErrInvalidResult], or [ErrInvalidArgument] for another
// number of results.
func (p *Plan) Result(results []*types100.Result) (*Result, error) {
	if len(results) != len(p.Attachments) {
		return nil, fmt.Errorf("%d results for %d attachments: %w", len(results), len(p.Attachments), ErrInvalidArgument)
	}
	if i := slices.Index(results, nil); i >= 0 {
		return nil, fmt.Errorf("network %q: no result: %w", p.Attachments[i].Network, ErrInvalidResult)
	}
	sources := make([]engine.Source, len(results))
	for i, a := range p.Attachments {
		sources[i] = engine.Source{Network: a.Network, IfName: a.IfName, Result: results[i], Ports: wireMappings(a.Ports)}
	}
	result, err := newResult(sources, ifName(p.prefix, 0))
	if err == nil {
		result.Ignored = p.ignored
		result.notePorts(nil, sources)
		for _, a := range p.Attachments {
			result.addRequested(a.Requested)
		}
	}
	return result, err
}

// call resolves the options of a call for a verb: networks, interface names, arguments
// and capabilities. A removal that has a record needs no such plan, so the reason why there
// is none is part of the call.
func (l *loaded) call(ns *Namespace, verb string) (*engine.Call, error) {
	if err := engine.ValidateID(ns.id); err != nil {
		return nil, err
	}
	c := &engine.Call{ID: ns.id, Path: ns.path, Makes: ns.makes, Selected: l.named(ns)}
	selected, err := l.selected(ns)
	errs := []error{err}
	taken := map[string]string{}
	var made []selection // one for each that is planned
	for _, sel := range selected {
		if verb == "DEL" && !sel.attachable(ns) {
			continue
		}
		p, err := l.planned(ns, sel)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if other, ok := taken[p.IfName]; ok {
			errs = append(errs, fmt.Errorf("networks %q and %q both want interface %s: %w",
				other, sel.network, p.IfName, ErrInvalidArgument))
		}
		taken[p.IfName] = sel.network
		c.Planned, made = append(c.Planned, p), append(made, sel)
	}
	// What has no effect can be told only if all networks are there.
	judged := verb == "ADD" && engine.Join(errs...) == nil
	errs = append(errs, askPorts(ns, c.Planned, made, judged))
	if judged {
		c.Ignored, err = l.undeclared(ns, made)
		errs = append(errs, err)
	}
	c.Err = engine.Join(errs...)
	return c, nil
}

// attachable reports whether the names allow that the container was attached to
// a network. A wrong name from the caller is an error; a removal skips a network
// that is merely loaded.
func (sel selection) attachable(ns *Namespace) bool {
	if sel.network != "" && sel.ifName != "" && engine.ValidateIfName(sel.ifName) != nil {
		return true // planned returns the error
	}
	return engine.IsAttachable(sel.network, ns.id, cmp.Or(sel.ifName, sel.of.conf.IfName))
}

func (l *loaded) planned(ns *Namespace, sel selection) (*engine.Planned, error) {
	n := sel.of
	name := cmp.Or(sel.ifName, n.conf.IfName)
	if err := conflist.RequireName(n.conf.Config); err != nil {
		return nil, fmt.Errorf("network for interface %s: %w: %w", name, err, ErrInvalidConfig)
	}
	if err := engine.ValidateIfName(name); err != nil {
		return nil, fmt.Errorf("interface %q: %w", name, err)
	}
	if err := engine.ValidateAttachmentName(n.conf.Config.Name, string(ns.id), name); err != nil {
		return nil, err
	}
	args, err := sortedArgs(engine.Merge(ns.args, sel.args))
	if err != nil {
		return nil, joined.Errorf("network %q: %w", sel.network, err)
	}
	capabilities, err := wireCapabilities(engine.Merge(ns.capabilityArgs, sel.capabilityArgs))
	if err != nil {
		return nil, joined.Errorf("network %q: %w", sel.network, err)
	}
	metadata := engine.Merge(ns.metadata, sel.metadata)
	if err := engine.CheckMetadata(metadata); err != nil {
		return nil, joined.Errorf("network %q: %w", sel.network, err)
	}
	p := &engine.Planned{Network: n.conf, OwnConfig: sel.list != nil, Prev: sel.prev, Metadata: metadata, Dirs: precedence(l.opts.PluginDirs, ns.dirs)}
	p.ConfigArgs = engine.Merge(ns.configArgs, sel.configArgs)
	p.RuntimeConf = libcni.RuntimeConf{
		ContainerID: string(ns.id), IfName: name, Args: args, CapabilityArgs: capabilities,
	}
	return p, nil
}

// named returns the networks that the caller names.
func (l *loaded) named(ns *Namespace) (all []engine.Selected) {
	for _, sel := range l.bound(ns) {
		one := engine.Selected{Network: sel.network, IfName: sel.ifName}
		if sel.list != nil || sel.of != nil && l.eng.Shared(sel.of.conf) {
			one.IfName = sel.of.conf.IfName
		}
		if sel.list == nil {
			_, one.Unknown = l.find(sel.network)
		}
		all = append(all, one)
	}
	return all
}

// selected returns a selection for each network of a call: the networks that
// WithNetwork names, or all loaded networks.
func (l *loaded) selected(ns *Namespace) (all []selection, err error) {
	if len(ns.selected) == 0 {
		for _, n := range l.networks {
			all = append(all, selection{network: n.conf.Config.Name, of: n})
		}
		return all, nil
	}
	var errs []error
	for i, sel := range l.bound(ns) {
		sel.index = i
		some, err := l.expand(sel)
		all, errs = append(all, some...), append(errs, err)
	}
	return all, engine.Join(errs...)
}

// expand returns a copy of the selection for each network that it selects.
func (l *loaded) expand(sel selection) ([]selection, error) {
	if sel.of != nil {
		return []selection{sel}, nil
	}
	found, err := l.find(sel.network)
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

// add adds a selection, with the options of its network.
func (ns *Namespace) add(sel selection, opts []NamespaceOpts) error {
	inner := &Namespace{id: ns.id, path: ns.path, scope: newScope(), list: sel.list}
	inner.nested = true
	for _, o := range opts {
		if err := o(inner); err != nil {
			return joined.Errorf("network %q: %w", sel.network, err)
		}
	}
	sel.scope = inner.scope
	ns.selected = append(ns.selected, sel)
	return nil
}

// bound returns the selections of a call. Those with a configuration of the call have
// their network.
func (l *loaded) bound(ns *Namespace) []selection {
	all := slices.Clone(ns.selected)
	for i := range all {
		if sel := &all[i]; sel.list != nil && sel.of == nil {
			sel.of = &Network{conf: &engine.Network{Config: sel.list, IfName: cmp.Or(sel.ifName, ifName(l.opts.prefix, i))}, loaded: l}
		}
	}
	return all
}

// usable is ready for a call. One that selects only networks with a configuration of
// their own needs no loaded ones.
func (r *Runtime) usable(s *loaded, ns *Namespace) error {
	if (ns.own || len(ns.selected) > 0) && !slices.ContainsFunc(ns.selected, func(sel selection) bool { return sel.list == nil }) {
		return nil
	}
	return r.ready(s)
}

// withRecorded returns the namespace of a Check with selections of the container's
// attachments on record whose configuration was that of their Setup: all of them, or
// those on networks that the call names and that are not loaded.
func (l *loaded) withRecorded(ns *Namespace) (*Namespace, error) {
	rec, err := l.eng.Store.Records.Load(ns.id)
	if rec == nil || err != nil {
		return ns, nil // the call finds out why
	}
	recorded, err := l.ownOf(rec)
	if len(recorded) == 0 || err != nil {
		return ns, err
	}
	with := *ns
	if len(ns.selected) == 0 {
		with.selected = append(l.loadedBeside(recorded), recorded...)
		return &with, nil
	}
	with.selected = nil
	for _, sel := range l.bound(ns) {
		// An interface that is named is the record's, whatever is loaded under that name.
		if sel.list == nil && sel.of == nil && (sel.ifName != "" || len(withName(l.networks, sel.network)) == 0) {
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
func (l *loaded) ownOf(rec *record.Record) (all []selection, err error) {
	for n := range rec.Present() {
		if !n.OwnConfig {
			continue
		}
		list, err := conflist.Parse(n.Config)
		if err != nil {
			return nil, fmt.Errorf("recorded configuration of network %q: %w: %w", n.Network, err, ErrInvalidConfig)
		}
		all = append(all, selection{
			network: n.Network, list: list, of: &Network{conf: &engine.Network{Config: list, IfName: n.IfName}, loaded: l}, scope: newScope(),
		})
	}
	return all, nil
}

// among returns the recorded attachments that a selection by name selects.
func (sel selection) among(recorded []selection) (found []selection) {
	for _, one := range recorded {
		if one.network == sel.network && (sel.ifName == "" || sel.ifName == one.of.conf.IfName) {
			found = append(found, one)
		}
	}
	return found
}

// loadedBeside returns the loaded networks, but for those whose interface is a recorded
// attachment's.
func (l *loaded) loadedBeside(recorded []selection) (all []selection) {
	for _, n := range l.networks {
		if !slices.ContainsFunc(recorded, func(one selection) bool { return one.of.conf.IfName == n.conf.IfName }) {
			all = append(all, selection{network: n.conf.Config.Name, of: n})
		}
	}
	return all
}

// parseOwn reads configurations of one call.
func parseOwn(configs [][]byte) (all []*engine.Network, err error) {
	for _, config := range configs {
		list, err := conflist.ParseAny(config)
		if err == nil {
			err = conflist.RequireName(list)
		}
		if err != nil {
			return nil, configError(err)
		}
		all = append(all, &engine.Network{Config: list})
	}
	return all, nil
}

package cni

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/conflist"
)

// Plan is what a Setup would ask of its networks; see Runtime.Plan.
type Plan struct {
	ContainerID string
	NetNS       string // the path
	NewNetNS    bool   // Setup would make the network namespace, see WithNewNetNS
	Owner       string // see WithOwner
	Attachments []PlannedAttachment

	// FirstPort and LastPort are the range from which Setup would choose ports of the
	// host; see WithPortRange.
	FirstPort, LastPort int

	prefix  string
	ignored []string // see Result.Ignored
}

// PlannedAttachment is a network of a Plan, with the parameters for its plugins.
type PlannedAttachment struct {
	Network string
	IfName  string
	Config  json.RawMessage // of the network, as one list
	// PrevResult is that of WithPrevResult.
	PrevResult json.RawMessage `json:",omitempty"`

	// As the plugins get them. A capability that no plugin of the network declares
	// has no effect; see Result.Ignored.
	Args         map[string]string          `json:",omitempty"`
	Capabilities map[string]json.RawMessage `json:",omitempty"`
	ConfigArgs   map[string]json.RawMessage `json:",omitempty"`

	// Ports are the ports of the host that a plugin of the network would be asked to
	// forward.
	Ports []PortMapping `json:",omitempty"`
	// Requested are the ports of WithPorts. Setup chooses the host ports that are 0.
	// Networks that would get the same ones have the same slice.
	Requested []Port            `json:",omitempty"`
	Metadata  map[string]string `json:",omitempty"`
}

// Plan validates the arguments of a Setup, and returns what Setup would ask of each
// network, in order. It runs nothing, changes nothing, and opens neither the path nor a
// record, so that it needs no privileges and works on every system. Its errors are those
// of Setup: ErrCNINotInitialized, ErrInvalidArgument, ErrInvalidConfig, ErrNotFound for a
// network that is not loaded.
//
// It is for dry runs, and for fakes of a Runtime: they cannot read NamespaceOpts
// otherwise.
func (r *Runtime) Plan(id, path string, opts ...NamespaceOpts) (*Plan, error) {
	s := r.current.Load()
	ns, err := newNamespace(id, path, opts...)
	if err := r.usable(s, ns); err != nil {
		return nil, err
	}
	var p *Plan
	if err == nil {
		p, err = s.planned(ns)
	}
	if err != nil {
		return nil, fmt.Errorf("set up container %q: %w", id, err)
	}
	return p, nil
}

func (s *snapshot) planned(ns *Namespace) (*Plan, error) {
	if err := validateID(ns.id); err != nil {
		return nil, err
	}
	op := &operation{e: s}
	all, err := op.plan(ns, "ADD")
	if err != nil {
		return nil, err
	}
	p := &Plan{
		ContainerID: string(ns.id), NetNS: ns.path, NewNetNS: ns.makes, Owner: s.opts.owner, prefix: s.opts.prefix,
		FirstPort: int(s.opts.portRange.First), LastPort: int(s.opts.portRange.Last), ignored: op.ignored,
	}
	for _, a := range all {
		one, err := a.planned()
		if err != nil {
			return nil, err
		}
		p.Attachments = append(p.Attachments, one)
	}
	return p, nil
}

func (a *attachment) planned() (p PlannedAttachment, err error) {
	p = PlannedAttachment{Network: a.network.config.Name, IfName: a.IfName, Ports: a.mappings(), Metadata: a.metadata}
	p.PrevResult, p.Args = json.RawMessage(a.prev), argsOf(a.Args)
	if p.Config, p.Capabilities, p.ConfigArgs, err = a.encoded(); err != nil {
		return p, err
	}
	if a.ports != nil {
		p.Requested = a.ports.asked
	}
	return p, nil
}

// Result converts the results of the networks' plugins as Setup does, one for each
// attachment in order. The error is ErrInvalidResult, or ErrInvalidArgument for another
// number of results.
func (p *Plan) Result(results []*types100.Result) (*Result, error) {
	if len(results) != len(p.Attachments) {
		return nil, fmt.Errorf("%d results for %d attachments: %w", len(results), len(p.Attachments), ErrInvalidArgument)
	}
	if i := slices.Index(results, nil); i >= 0 {
		return nil, fmt.Errorf("network %q: no result: %w", p.Attachments[i].Network, ErrInvalidResult)
	}
	sources := make([]source, len(results))
	for i, a := range p.Attachments {
		sources[i] = source{network: a.Network, ifName: a.IfName, result: results[i], ports: a.Ports}
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

// plan makes the attachments for a verb: their networks, interface names,
// arguments and capabilities.
func (op *operation) plan(ns *Namespace, verb string) (all attachments, err error) {
	selected, err := op.e.selected(ns)
	errs := []error{err}
	taken := map[string]string{}
	var made []selection // one for each of all
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
		all, made = append(all, a), append(made, sel)
	}
	// What has no effect can be told only if all networks are there.
	judged := verb == "ADD" && join(errs...) == nil
	errs = append(errs, all.askPortsOf(ns, made, judged))
	if judged {
		op.ignored, err = op.e.undeclared(ns, made)
		errs = append(errs, err)
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
	a := &attachment{op: op, network: n, ownConfig: sel.list != nil, prev: sel.prev, metadata: metadata, dirs: precedence(op.e.opts.pluginDirs, ns.dirs)}
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

// about returns an attachment without a container, for verbs on a network. It has an
// interface name only if several loaded networks have the same name.
func (op *operation) about(n *Network) *attachment {
	a := &attachment{op: op, network: n}
	if op.e.shared(n) {
		a.IfName = n.ifName
	}
	return a
}

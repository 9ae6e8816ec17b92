package cni

import (
	"encoding/json"
	"fmt"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/conflist"
)

// Plan is what a Setup would ask of its networks; see Runtime.Plan.
type Plan struct {
	ContainerID string
	NetNS       string // the path
	Owner       string // see WithOwner
	Attachments []PlannedAttachment

	prefix string
}

// PlannedAttachment is a network of a Plan, with the parameters for its plugins.
type PlannedAttachment struct {
	Network string
	IfName  string
	Config  json.RawMessage // of the network, as one list

	// As the plugins get them. A capability that no plugin of the network declares
	// has no effect.
	Args         map[string]string          `json:",omitempty"`
	Capabilities map[string]json.RawMessage `json:",omitempty"`
	ConfigArgs   map[string]json.RawMessage `json:",omitempty"`

	// Ports are the ports of the host that a plugin of the network would be asked to
	// forward.
	Ports    []PortMapping     `json:",omitempty"`
	Metadata map[string]string `json:",omitempty"`
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
	if err := r.ready(s); err != nil {
		return nil, err
	}
	p, err := s.planned(id, path, opts)
	if err != nil {
		return nil, fmt.Errorf("set up container %q: %w", id, err)
	}
	return p, nil
}

func (s *snapshot) planned(id, path string, opts []NamespaceOpts) (*Plan, error) {
	ns, err := newNamespace(id, path, opts...)
	if err != nil {
		return nil, err
	}
	if err := validateID(ns.id); err != nil {
		return nil, err
	}
	all, err := (&operation{snapshot: s}).plan(ns, "ADD")
	if err != nil {
		return nil, err
	}
	p := &Plan{ContainerID: id, NetNS: path, Owner: s.owner, prefix: s.prefix}
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
	if p.Config, err = conflist.Whole(a.network.config); err != nil {
		return p, err
	}
	if p.Capabilities, err = rawMap(a.CapabilityArgs); err != nil {
		return p, fmt.Errorf("network %q: capability %w", p.Network, err)
	}
	if p.ConfigArgs, err = rawMap(a.ConfigArgs); err != nil {
		return p, fmt.Errorf("network %q: args.cni.%w", p.Network, err)
	}
	for _, arg := range a.Args {
		if p.Args == nil {
			p.Args = make(map[string]string, len(a.Args))
		}
		p.Args[arg[0]] = arg[1]
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
		result.notePorts(nil, sources)
	}
	return result, err
}

package engine

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/internal/store/ports"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/outcome"
)

// CapPortMappings is the capability of ports of the host that are forwarded.
const CapPortMappings = ports.Capability

// Mapping is a port mapping as plugins read it (CONVENTIONS.md).
type Mapping struct {
	HostPort      int32  `json:"hostPort"`
	ContainerPort int32  `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP,omitempty"`
}

// ValidMappings validates mappings and completes them. It refuses those that a plugin would
// apply in part: a port out of range, an invalid address, and two mappings that claim the
// same port of the host.
func ValidMappings(mappings []Mapping) ([]Mapping, error) {
	wire := make([]Mapping, 0, len(mappings))
	claimed := make(map[int32][]ports.Claim) // by host port
	var errs []error
	for _, m := range mappings {
		p, err := m.whole()
		if err != nil {
			errs = append(errs, fmt.Errorf("port mapping %s: %w", p, err))
			continue
		}
		claims := claimsOf([]Mapping{p})
		if ports.Overlap(claimed[p.HostPort], claims) {
			errs = append(errs, &tagged{fmt.Errorf("host port %s is mapped twice: %w", p, outcome.ErrInvalidArgument), outcome.ErrPortInUse})
		}
		wire, claimed[p.HostPort] = append(wire, p), append(claimed[p.HostPort], claims...)
	}
	if len(errs) > 0 {
		return nil, Join(errs...)
	}
	return wire, nil
}

// whole returns the mapping with its protocol as plugins know it, also with an error.
func (m Mapping) whole() (Mapping, error) {
	p := m
	p.Protocol = strings.ToLower(m.Protocol)
	if p.Protocol == "" {
		p.Protocol = "tcp"
	}
	invalid := func(format string, args ...any) (Mapping, error) {
		return p, fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), outcome.ErrInvalidArgument)
	}
	if !slices.Contains(ports.Protocols(), p.Protocol) {
		return invalid("protocol %q is none of tcp, udp, sctp", m.Protocol)
	}
	if m.HostPort == 0 {
		return invalid("host port 0 is not 1 to 65535; WithPorts chooses a port")
	}
	if m.HostPort < 1 || m.HostPort > 65535 {
		return invalid("host port %d is not 1 to 65535", m.HostPort)
	}
	if m.ContainerPort < 1 || m.ContainerPort > 65535 {
		return invalid("container port %d is not 1 to 65535", m.ContainerPort)
	}
	if m.HostIP != "" {
		if _, err := ports.ParseAddr(m.HostIP); err != nil {
			return invalid("host address %q %v", m.HostIP, err)
		}
	}
	return p, nil
}

func (p Mapping) String() string {
	return fmt.Sprintf("%s:%d->%d/%s", p.HostIP, p.HostPort, p.ContainerPort, p.Protocol)
}

// portMappings returns a mapping for each protocol. The host port may be 0.
func portMappings(p record.Port) (all []Mapping) {
	protocols := p.Protocols
	if len(protocols) == 0 {
		protocols = []string{"tcp"}
	}
	for _, protocol := range protocols {
		all = append(all, Mapping{p.HostPort, p.ContainerPort, protocol, p.HostIP})
	}
	return all
}

// askedPorts are ports that a caller asks for, for one network or for several. Networks
// that share them get the same host ports.
type askedPorts struct {
	Asked []record.Port
	given []record.Port // with the host ports that were chosen; until then 0
}

// NewAskedPorts validates ports, and names their protocols.
func NewAskedPorts(all []record.Port) (*askedPorts, error) {
	labels := make(map[string]bool)
	asked := slices.Clone(all)
	var errs []error
	for i := range asked {
		p := &asked[i]
		if p.Label != "" && labels[p.Label] {
			errs = append(errs, fmt.Errorf("two ports have the label %q: %w", p.Label, outcome.ErrInvalidArgument))
		}
		labels[p.Label] = true
		var protocols []string
		for _, m := range portMappings(*p) {
			m.HostPort = cmp.Or(m.HostPort, 1)
			w, err := m.whole()
			if err == nil && slices.Contains(protocols, w.Protocol) {
				err = fmt.Errorf("protocol %s is named twice: %w", w.Protocol, outcome.ErrInvalidArgument)
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("port %s: %w", cmp.Or(p.Label, fmt.Sprint(i+1)), err))
			}
			protocols = append(protocols, w.Protocol)
		}
		p.Protocols = protocols
	}
	return &askedPorts{asked, asked}, Join(errs...)
}

// open returns the number of host ports to choose, and their protocols.
func (a *askedPorts) open() (n int, protocols []string) {
	for _, p := range a.Asked {
		if p.HostPort == 0 {
			n, protocols = n+1, Union(protocols, p.Protocols)
		}
	}
	return n, protocols
}

// give fills in the host ports that were chosen, and returns the rest of them.
func (a *askedPorts) give(chosen []uint16) (rest []uint16) {
	a.given = slices.Clone(a.Asked)
	for i := range a.given {
		if a.given[i].HostPort == 0 {
			a.given[i].HostPort, chosen = int32(chosen[0]), chosen[1:]
		}
	}
	return chosen
}

// AskPorts puts ports into the capability, beside those that it has: the ones with a host
// port, until the others are chosen.
func (a *Planned) AskPorts(asked *askedPorts) error {
	if len(asked.Asked) == 0 || !conflist.Declares(a.Network.Config, CapPortMappings) {
		return nil
	}
	mapped, ok := a.CapabilityArgs[CapPortMappings].([]Mapping)
	if !ok && a.CapabilityArgs[CapPortMappings] != nil {
		return fmt.Errorf("WithPorts beside a capability %s of another type than PortMapping: %w", CapPortMappings, outcome.ErrInvalidArgument)
	}
	a.mapped, a.Ports = mapped, asked
	return a.mapPorts()
}

// mapPorts sets the capability from the ports that the attachment was given.
func (a *Planned) mapPorts() error {
	all := slices.Clone(a.mapped)
	for _, p := range a.Ports.given {
		if p.HostPort != 0 {
			all = append(all, portMappings(p)...)
		}
	}
	wire, err := ValidMappings(all)
	if err == nil && len(wire) > 0 {
		a.CapabilityArgs[CapPortMappings] = wire
	} else if err == nil && len(a.mapped) == 0 { // none is chosen yet
		delete(a.CapabilityArgs, CapPortMappings)
	}
	return err
}

// recordPorts notes the ports in the attachment's entry of a record.
func (a *Planned) recordPorts(n *record.Attachment) error {
	if a.Ports == nil {
		return nil
	}
	n.Ports = slices.Clone(a.Ports.given)
	if mappings := a.CapabilityArgs[CapPortMappings]; mappings != nil {
		data, err := json.Marshal(mappings)
		if err != nil {
			return err
		}
		if n.Capabilities == nil {
			n.Capabilities = make(map[string]json.RawMessage)
		}
		n.Capabilities[CapPortMappings] = data
	}
	return nil
}

// hostPorts returns the ports of the host that the attachment asks for: those in the
// capability, if a plugin of the network takes it.
func (a *Planned) hostPorts() []ports.Claim {
	mappings := a.CapabilityArgs[CapPortMappings]
	if mappings == nil || !conflist.Declares(a.Network.Config, CapPortMappings) {
		return nil
	}
	if wire, ok := mappings.([]Mapping); ok { // nearly always
		return claimsOf(wire)
	}
	return ports.Of(mappings)
}

func claimsOf(mappings []Mapping) (claims []ports.Claim) {
	for _, m := range mappings {
		if c, ok := ports.Claimed(int(m.HostPort), m.Protocol, m.HostIP); ok {
			claims = append(claims, c)
		}
	}
	return claims
}

// hostPorts returns the ports that all attachments ask for.
func (all attachments) hostPorts() (wanted []ports.Claim) {
	for _, a := range all {
		wanted = append(wanted, a.plan.hostPorts()...)
	}
	return wanted
}

// Mappings returns the ports that a plugin of the attachment's network was asked to
// forward.
func (a *Planned) Mappings() []Mapping {
	given := a.CapabilityArgs[CapPortMappings]
	if given == nil || !conflist.Declares(a.Network.Config, CapPortMappings) {
		return nil
	}
	if wire, ok := given.([]Mapping); ok {
		return wire
	}
	data, err := json.Marshal(given)
	if err != nil {
		return nil // no plugin got it either
	}
	return MappingsIn(data)
}

// RecordedMappings is mappings for an attachment on record.
func RecordedMappings(n *record.Attachment) []Mapping {
	if len(ports.ClaimsOf(n)) == 0 {
		return nil
	}
	return MappingsIn(n.Capabilities[CapPortMappings])
}

// MappingsIn reads the capability as plugins get it. A value of another form is no list
// of ports.
func MappingsIn(data json.RawMessage) (wire []Mapping) {
	if json.Unmarshal(data, &wire) != nil {
		return nil
	}
	return wire
}

// requested returns the ports that the caller asked for by themselves, each once.
func (all attachments) requested() (requested []record.Port) {
	sets, _, _ := all.openPorts()
	for _, set := range sets {
		requested = append(requested, set.given...)
	}
	return requested
}

// earlier returns the container's attachments to which ports may be forwarded since an
// earlier call.
func earlier(op *operation) (sources []Source) {
	own := op.attachments.names()
	for n := range op.c.Recorded.Record.Present() {
		if own[n.IfName] || !n.Answered() {
			continue
		}
		ports := RecordedMappings(n)
		if result := chain.Decode(n.Result); result != nil && len(ports) > 0 {
			sources = append(sources, Source{n.Network, n.IfName, result, ports})
		}
	}
	return sources
}

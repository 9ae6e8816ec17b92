package cni

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/embedcni/cni/internal/ports"
	"github.com/embedcni/cni/internal/record"
)

// Port is a port of a container that is reached on the host. With WithPorts a caller asks
// for it; Result.Requested has what the container got.
type Port struct {
	// Label is the caller's name for the port, for Result.Port; it may be empty. Plugins
	// do not see it.
	Label string `json:",omitempty"`
	// HostIP is the host's address; empty means all of them.
	HostIP string `json:",omitempty"`
	// HostPort is 1 to 65535. If it is 0, Setup chooses one; see WithPortRange.
	HostPort int32
	// ContainerPort is 1 to 65535.
	ContainerPort int32
	// Protocols are some of tcp, udp and sctp; none means tcp. All have the same ports.
	Protocols []string `json:",omitempty"`
}

// ParsePorts reads ports as people write them:
//
//	8080:80                  port 8080 of the host, 80 of the container
//	80 or :80                a port of the host that Setup chooses
//	127.0.0.1:8080:80/udp    at one address of the host
//	[::1]::53/tcp+udp        an IPv6 address, a chosen port, two protocols
//	8000-8010:9000-9010      a range; it becomes eleven ports
//
// It accepts the ports of docker run and nerdctl run but one: of several host ports for
// one port of the container, Docker takes a free one and nerdctl the first, so that the
// text does not say which is meant. IPv6 addresses have brackets. Several protocols are
// an extension.
//
// The error is ErrInvalidArgument, and names the part that cannot be read.
func ParsePorts(text string) ([]Port, error) {
	parsed, err := ports.Parse(text)
	if err != nil {
		return nil, &tagged{err, ErrInvalidArgument}
	}
	all := make([]Port, len(parsed))
	for i, p := range parsed {
		all[i] = Port(p)
	}
	return all, nil
}

// String returns the port as ParsePorts reads it, without the label.
func (p Port) String() string { return ports.Text(record.Port(p)) }

// WithPorts forwards ports of the host to the container, beside those of
// WithCapabilityPortMap. Plugins get them as the capability portMappings.
//
// Setup chooses a port of the host where HostPort is 0, and has it on record before a
// plugin runs: one that no container on record has, and no process on the host. The
// container has it until it is removed, by Remove, Recover or GC. Lookup and Attachments
// return it, after a restart too. If all ports are taken, the error is
// ErrPortInUse, and says who has how many.
//
// A label may stand once in a call, or once in each WithNetwork. It is ErrInvalidArgument
// if no plugin of the networks declares the capability portMappings. Remove and Check
// ignore ports that Setup has chosen: the record has them.
func WithPorts(all ...Port) NamespaceOpts {
	all = slices.Clone(all)
	return give(func(ns *Namespace) { ns.ports = append(ns.ports, all...) })
}

// Port returns the port of that label as the container got it. ok is false if Setup was
// not asked for one.
func (r *Result) Port(label string) (p Port, ok bool) {
	i := slices.IndexFunc(r.Requested, func(p Port) bool { return p.Label == label })
	if label == "" || i < 0 {
		return Port{}, false
	}
	return r.Requested[i], true
}

// mappings returns a mapping for each protocol. The host port may be 0.
func (p Port) mappings() (all []PortMapping) {
	protocols := p.Protocols
	if len(protocols) == 0 {
		protocols = []string{"tcp"}
	}
	for _, protocol := range protocols {
		all = append(all, PortMapping{p.HostPort, p.ContainerPort, protocol, p.HostIP})
	}
	return all
}

// askedPorts are the ports of one WithPorts, for one network or for several. Networks
// that share them get the same host ports.
type askedPorts struct {
	asked []Port
	given []Port // with the host ports that were chosen; until then 0
}

// newAskedPorts validates ports, and names their protocols.
func newAskedPorts(all []Port) (*askedPorts, error) {
	labels := make(map[string]bool)
	asked := slices.Clone(all)
	var errs []error
	for i := range asked {
		p := &asked[i]
		if p.Label != "" && labels[p.Label] {
			errs = append(errs, fmt.Errorf("two ports have the label %q: %w", p.Label, ErrInvalidArgument))
		}
		labels[p.Label] = true
		var protocols []string
		for _, m := range p.mappings() {
			m.HostPort = cmp.Or(m.HostPort, 1)
			w, err := m.wire()
			if err == nil && slices.Contains(protocols, w.Protocol) {
				err = fmt.Errorf("protocol %s is named twice: %w", w.Protocol, ErrInvalidArgument)
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("port %s: %w", cmp.Or(p.Label, fmt.Sprint(i+1)), err))
			}
			protocols = append(protocols, w.Protocol)
		}
		p.Protocols = protocols
	}
	return &askedPorts{asked, asked}, join(errs...)
}

// open returns the number of host ports to choose, and their protocols.
func (a *askedPorts) open() (n int, protocols []string) {
	for _, p := range a.asked {
		if p.HostPort == 0 {
			n, protocols = n+1, union(protocols, p.Protocols)
		}
	}
	return n, protocols
}

// give fills in the host ports that were chosen, and returns the rest of them.
func (a *askedPorts) give(chosen []uint16) (rest []uint16) {
	a.given = slices.Clone(a.asked)
	for i := range a.given {
		if a.given[i].HostPort == 0 {
			a.given[i].HostPort, chosen = int32(chosen[0]), chosen[1:]
		}
	}
	return chosen
}

// askPorts puts ports into the capability, beside those that it has: the ones with a host
// port, until the others are chosen.
func (a *attachment) askPorts(asked *askedPorts) error {
	if len(asked.asked) == 0 || !a.network.declares(capPortMappings) {
		return nil
	}
	mapped, ok := a.CapabilityArgs[capPortMappings].([]wirePort)
	if !ok && a.CapabilityArgs[capPortMappings] != nil {
		return fmt.Errorf("WithPorts beside a capability %s of another type than PortMapping: %w", capPortMappings, ErrInvalidArgument)
	}
	a.mapped, a.ports = mapped, asked
	return a.mapPorts()
}

// mapPorts sets the capability from the ports that the attachment was given.
func (a *attachment) mapPorts() error {
	all := asMappings(a.mapped)
	for _, p := range a.ports.given {
		if p.HostPort != 0 {
			all = append(all, p.mappings()...)
		}
	}
	wire, err := wirePorts(all)
	if err == nil && len(wire) > 0 {
		a.CapabilityArgs[capPortMappings] = wire
	} else if err == nil && len(a.mapped) == 0 { // none is chosen yet
		delete(a.CapabilityArgs, capPortMappings)
	}
	return err
}

// askPortsOf puts the ports of WithPorts into the attachments of a call, which belong to
// these selections. If mustMap, each has to have an effect.
func (all attachments) askPortsOf(ns *Namespace, selected []selection, mustMap bool) error {
	shared, err := newAskedPorts(ns.ports)
	errs := []error{err}
	used := len(ns.ports) == 0 || !mustMap
	for i, a := range all {
		asked := shared
		if own := selected[i].ports; own != nil {
			var oerr error
			asked, oerr = newAskedPorts(own)
			errs = append(errs, oerr)
		}
		if err := join(errs...); err != nil {
			return err
		}
		if err := a.askPorts(asked); err != nil {
			return err
		}
		if asked == shared {
			used = used || a.ports != nil
		} else if a.ports == nil && mustMap {
			errs = append(errs, fmt.Errorf("network %q: %w", a.network.config.Name, errUnmappedPorts))
		}
	}
	if !used {
		errs = append(errs, errUnmappedPorts)
	}
	return join(errs...)
}

var errUnmappedPorts = fmt.Errorf("ports are asked for, and no plugin declares the capability %s: %w", capPortMappings, ErrInvalidArgument)

// requested returns the ports of WithPorts, each once.
func (all attachments) requested() (requested []Port) {
	sets, _, _ := all.openPorts()
	for _, set := range sets {
		requested = append(requested, set.given...)
	}
	return requested
}

// recordPorts notes the ports in the attachment's entry of a record.
func (a *attachment) recordPorts(n *record.Attachment) error {
	if a.ports == nil {
		return nil
	}
	n.Ports = nil
	for _, p := range a.ports.given {
		n.Ports = append(n.Ports, record.Port(p))
	}
	if mappings := a.CapabilityArgs[capPortMappings]; mappings != nil {
		data, err := json.Marshal(mappings)
		if err != nil {
			return err
		}
		if n.Capabilities == nil {
			n.Capabilities = make(map[string]json.RawMessage)
		}
		n.Capabilities[capPortMappings] = data
	}
	return nil
}

// addRequested adds ports that the Result does not have yet: networks that share them
// have each its copy on record.
func (r *Result) addRequested(all []Port) {
	for _, p := range all {
		if !slices.ContainsFunc(r.Requested, p.equal) {
			r.Requested = append(r.Requested, p)
		}
	}
}

// recordedPorts returns the ports of WithPorts that an attachment has on record.
func recordedPorts(n *record.Attachment) (all []Port) {
	for _, p := range n.Ports {
		all = append(all, Port(p))
	}
	return all
}

func (p Port) equal(q Port) bool {
	return p.Label == q.Label && p.HostIP == q.HostIP && p.HostPort == q.HostPort &&
		p.ContainerPort == q.ContainerPort && slices.Equal(p.Protocols, q.Protocols)
}

package cni

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/embedcni/cni/internal/engine/engine"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/internal/store/ports"
	"github.com/embedcni/cni/internal/store/record"
)

// PortMapping forwards a port of the host to one of the container. HostPort and
// ContainerPort are 1 to 65535. Protocol is tcp, udp or sctp in upper or lower case;
// empty means tcp. HostIP is the host's address; empty means all of them.
type PortMapping struct {
	HostPort      int32
	ContainerPort int32
	Protocol      string
	HostIP        string
}

// Port is a port of a container that is reached on the host. With [WithPorts] a caller asks
// for it; Result.Requested has what the container got.
type Port struct {
	// Label is the caller's name for the port, for Result.Port; it may be empty. Plugins
	// do not see it.
	Label string `json:",omitempty"`
	// HostIP is the host's address; empty means all of them.
	HostIP string `json:",omitempty"`
	// HostPort is 1 to 65535. If it is 0, [Runtime.Setup] chooses one; see [WithPortRange].
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
// The error is [ErrInvalidArgument], and names the part that cannot be read.
func ParsePorts(text string) ([]Port, error) {
	parsed, err := ports.Parse(text)
	if err != nil {
		return nil, engine.Tag(err, ErrInvalidArgument)
	}
	all := make([]Port, len(parsed))
	for i, p := range parsed {
		all[i] = Port(p)
	}
	return all, nil
}

// String returns the port as [ParsePorts] reads it, without the label.
func (p Port) String() string { return ports.Text(record.Port(p)) }

// WithPorts forwards ports of the host to the container, beside those of
// [WithCapabilityPortMap]. Plugins get them as the capability portMappings.
//
// [Runtime.Setup] chooses a port of the host where HostPort is 0, and has it on record
// before a plugin runs: one that no container on record has, and no process on the host.
// The container has it until it is removed, by [Runtime.Remove], [Runtime.Recover] or GC.
// [Runtime.Lookup] and Attachments return it, after a restart too. If all ports are taken,
// the error is [ErrPortInUse], and says who has how many.
//
// A label may stand once in a call, or once in each [WithNetwork]. It is [ErrInvalidArgument]
// if no plugin of the networks declares the capability portMappings. Remove and Check
// ignore ports that Setup has chosen: the record has them.
func WithPorts(all ...Port) NamespaceOpts {
	all = slices.Clone(all)
	return give(func(ns *Namespace) { ns.ports = append(ns.ports, all...) })
}

// Port returns the port of that label as the container got it. ok is false if [Runtime.Setup] was
// not asked for one.
func (r *Result) Port(label string) (p Port, ok bool) {
	i := slices.IndexFunc(r.Requested, func(p Port) bool { return p.Label == label })
	if label == "" || i < 0 {
		return Port{}, false
	}
	return r.Requested[i], true
}

// notePorts notes in each network of a Result, which were made of own, the ports that
// are forwarded to it.
func (r *Result) notePorts(earlier, own []engine.Source) {
	for i, forwarded := range forwardedTo(slices.Concat(earlier, own))[len(earlier):] {
		r.Networks[i].Ports = asMappings(forwarded)
	}
}

// wireMappings returns mappings as plugins read them.
func wireMappings(mappings []PortMapping) (wire []engine.Mapping) {
	for _, m := range mappings {
		wire = append(wire, engine.Mapping(m))
	}
	return wire
}

func asMappings(wire []engine.Mapping) (all []PortMapping) {
	for _, p := range wire {
		all = append(all, PortMapping(p))
	}
	return all
}

// forwardedTo returns the ports that are forwarded to each network of a container. A
// port is forwarded in each family of which the network has an address; among several
// networks, the first keeps it.
func forwardedTo(sources []engine.Source) [][]engine.Mapping {
	all := make([][]engine.Mapping, len(sources))
	taken := map[bool][]ports.Claim{} // of IPv4 (true) and IPv6
	for i, s := range sources {
		if len(s.Ports) == 0 {
			continue
		}
		v4, v6 := contract.FirstAddresses(s.Result, s.IfName)
		own := map[bool][]ports.Claim{}
		for _, m := range s.Ports {
			free := false
			for _, is4 := range []bool{true, false} {
				c, ok := inFamily(m, is4)
				if !ok || is4 && !v4.IsValid() || !is4 && !v6.IsValid() {
					continue
				}
				own[is4] = append(own[is4], c)
				free = free || !slices.ContainsFunc(taken[is4], func(t ports.Claim) bool { return t.Includes(c) })
			}
			if free {
				all[i] = append(all[i], m)
			}
		}
		taken[true], taken[false] = append(taken[true], own[true]...), append(taken[false], own[false]...)
	}
	return all
}

// inFamily returns the claim of a mapping in one family, if it has one.
func inFamily(m engine.Mapping, is4 bool) (c ports.Claim, ok bool) {
	c, ok = ports.Claimed(int(m.HostPort), m.Protocol, m.HostIP)
	if !ok {
		return c, false
	}
	all := netip.IPv6Unspecified()
	if is4 {
		all = netip.IPv4Unspecified()
	}
	if !c.Addr.IsValid() {
		c.Addr = all
	}
	return c, c.Addr.Is4() == is4
}

// askPorts puts the ports of WithPorts into the plan of a call, which belong to
// these selections. If mustMap, each has to have an effect.
func askPorts(ns *Namespace, all []*engine.Planned, selected []selection, mustMap bool) error {
	shared, err := engine.NewAskedPorts(recordPorts(ns.ports))
	errs := []error{err}
	used := len(ns.ports) == 0 || !mustMap
	for i, a := range all {
		asked := shared
		if own := selected[i].ports; own != nil {
			var oerr error
			asked, oerr = engine.NewAskedPorts(recordPorts(own))
			errs = append(errs, oerr)
		}
		if err := engine.Join(errs...); err != nil {
			return err
		}
		if err := a.AskPorts(asked); err != nil {
			return err
		}
		if asked == shared {
			used = used || a.Ports != nil
		} else if a.Ports == nil && mustMap {
			errs = append(errs, unmapped(selected[i].of))
		}
	}
	if !used {
		var networks []*Network
		for _, sel := range selected {
			networks = append(networks, sel.of)
		}
		errs = append(errs, unmapped(networks...))
	}
	return engine.Join(errs...)
}

// unmapped is the error for ports that no plugin of the networks forwards.
func unmapped(networks ...*Network) error {
	return fmt.Errorf("ports are asked for, and no plugin of %s declares the capability %s: %s: %w",
		namesOf(networks), engine.CapPortMappings, advice(networks, engine.CapPortMappings), ErrInvalidArgument)
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

func recordPorts(ports []Port) (all []record.Port) {
	for _, p := range ports {
		all = append(all, record.Port(p))
	}
	return all
}

func asPorts(ports []record.Port) (all []Port) {
	for _, p := range ports {
		all = append(all, Port(p))
	}
	return all
}

func (p Port) equal(q Port) bool {
	return p.Label == q.Label && p.HostIP == q.HostIP && p.HostPort == q.HostPort &&
		p.ContainerPort == q.ContainerPort && slices.Equal(p.Protocols, q.Protocols)
}

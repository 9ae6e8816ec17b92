package footprint

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/embedcni/cni/internal/builtin"
	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/plugin"
)

// portMappings is the capability of the plugin portmap.
const portMappings = "portMappings"

// hostPorts reads the capability portMappings, which the caller and the record have
// in different types.
//
//	[{"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": "192.0.2.1"}]
func hostPorts(mappings any) ([]netfilter.HostPort, error) {
	data, err := json.Marshal(mappings)
	if err != nil {
		return nil, err
	}
	var wire []struct {
		HostPort, ContainerPort uint16
		Protocol, HostIP        string
	}
	if err := json.Unmarshal(data, &wire); err != nil {
		return nil, err
	}
	var ports []netfilter.HostPort
	for _, w := range wire {
		p := netfilter.HostPort{HostPort: w.HostPort, ContainerPort: w.ContainerPort, Protocol: cmp.Or(strings.ToLower(w.Protocol), "tcp")}
		if w.HostIP != "" {
			if p.HostIP, err = netip.ParseAddr(w.HostIP); err != nil {
				return nil, err
			}
		}
		if p.HostPort == 0 || p.ContainerPort == 0 || p.HostIP.Zone() != "" || !slices.Contains([]string{"tcp", "udp", "sctp"}, p.Protocol) {
			return nil, fmt.Errorf("port mapping %+v is not valid", w)
		}
		ports = append(ports, p)
	}
	return ports, nil
}

// knownWithoutUDP reports whether the attachment is known to have no UDP port. To
// look for flows takes the kernel through the whole table of connections, which
// takes ten times as long as removing a container.
func (a *Attachment) knownWithoutUDP() bool {
	ports, err := hostPorts(a.CapabilityArgs[portMappings])
	return a.Recorded && err == nil && !slices.ContainsFunc(ports, func(p netfilter.HostPort) bool { return p.Protocol == "udp" })
}

// The reference plugins name the chains of an attachment, for masquerading and for
// host ports, after the network and the container. In nftables they name host ports
// after the container alone. Two attachments of a container, for example to the IPv4
// and the IPv6 list of a network, share these chains. They are siblings. The removal
// of one attachment must keep the rules of its siblings.

// Wanted has the rules that one plugin makes for an attachment.
type Wanted struct {
	Type  string
	Rules []netfilter.Rule
}

// Wants returns the attachment's rules that name ports, or that are in chains which other
// attachments of the container may share.
func (a *Attachment) Wants() (all []Wanted, err error) {
	result := chain.Decode(a.Result)
	var errs []error
	for i, p := range a.List.Plugins {
		w := Wanted{Type: p.Network.Type}
		if a.IsCallers(w.Type) {
			continue // its rules are unknown
		}
		config, err := (&chain.Chain{List: a.List}).Request(i, &a.Attachment)
		if err == nil {
			w.Rules, err = builtin.Wants(&plugin.Request{
				ContainerID: a.ContainerID, IfName: a.IfName, NetNS: a.NetNS, Name: a.List.Name,
				Type: w.Type, CNIVersion: a.List.CNIVersion, Config: config, PrevResult: result,
			})
		}
		if errs = append(errs, err); err == nil && len(w.Rules) > 0 {
			all = append(all, w)
		}
	}
	return all, errors.Join(errs...)
}

// SharedRules returns the attachment's rules in chains that siblings may share. With
// an error, some of them are unknown.
func (a *Attachment) SharedRules() (all []netfilter.Rule, err error) {
	wants, err := a.Wants()
	for _, w := range wants {
		all = append(all, w.Rules...)
	}
	return all, err
}

// Siblings describes the other attachments of a container for the removal of one
// from the network. The error names those whose rules are unknown; rules that they
// may share then stay.
func Siblings(network string, others []*Attachment) (s netfilter.Siblings, err error) {
	var errs []error
	for _, b := range others {
		s.Owners = append(s.Owners, b.Owner())
		s.Addresses = append(s.Addresses, Addresses(b.Result)...)
		if b.List.Name != network {
			continue
		}
		rules, err := b.SharedRules()
		s.Rules = append(s.Rules, rules...)
		if err != nil {
			s.Unknown = true
			errs = append(errs, fmt.Errorf("interface %s: %w", b.IfName, err))
		}
	}
	return s, errors.Join(errs...)
}

// Lost reports whether a removal may also delete the rules that a sibling wants, so that
// those that are missing must be made again.
type Lost func(sibling *Attachment, w Wanted) bool

// LostWith returns which rules of siblings a DEL deletes that a plugin of a type has run
// for the attachment; nil: none. Built-in plugins leave a sibling's rules, and the rules
// of the caller's plugins are unknown.
func (a *Attachment) LostWith(typ string) Lost {
	deleted := known.Of(typ).Rules
	if deleted != known.HostPorts && deleted != known.Masquerade || a.IsBuiltIn(typ) || a.IsCallers(typ) {
		return nil
	}
	return func(sibling *Attachment, w Wanted) bool {
		// In nftables the comment of host ports is the container's ID on every network.
		return known.Of(w.Type).Rules == deleted && (sibling.List.Name == a.List.Name || deleted == known.HostPorts)
	}
}

// Inherited selects the siblings' host ports. A sibling may forward the same port of the
// host as the removed attachment.
func Inherited(_ *Attachment, w Wanted) bool {
	return known.Of(w.Type).Rules == known.HostPorts
}

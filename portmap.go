package cni

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/embedcni/cni/internal/ports"
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

// wirePort is a port mapping as plugins read it (CONVENTIONS.md).
type wirePort struct {
	HostPort      int32  `json:"hostPort"`
	ContainerPort int32  `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP,omitempty"`
}

// wirePorts validates and converts mappings. It refuses those that a plugin would apply
// in part: a port out of range, an invalid address, and two mappings that claim the
// same port of the host.
func wirePorts(mappings []PortMapping) ([]wirePort, error) {
	wire := make([]wirePort, 0, len(mappings))
	var claimed []ports.Claim
	var errs []error
	for _, m := range mappings {
		p, err := m.wire()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		claims := ports.Of([]wirePort{p})
		if slices.ContainsFunc(claimed, func(c ports.Claim) bool { return slices.ContainsFunc(claims, c.Overlaps) }) {
			errs = append(errs, &tagged{fmt.Errorf("host port %s is mapped twice: %w", p, ErrInvalidArgument), ErrPortInUse})
		}
		wire, claimed = append(wire, p), append(claimed, claims...)
	}
	if len(errs) > 0 {
		return nil, join(errs...)
	}
	return wire, nil
}

func (m PortMapping) wire() (wirePort, error) {
	p := wirePort{m.HostPort, m.ContainerPort, strings.ToLower(m.Protocol), m.HostIP}
	if p.Protocol == "" {
		p.Protocol = "tcp"
	}
	invalid := func(format string, args ...any) (wirePort, error) {
		return wirePort{}, fmt.Errorf("port mapping %s: %s: %w", p, fmt.Sprintf(format, args...), ErrInvalidArgument)
	}
	switch p.Protocol {
	case "tcp", "udp", "sctp":
	default:
		return invalid("protocol %q is none of tcp, udp, sctp", m.Protocol)
	}
	if m.HostPort < 1 || m.HostPort > 65535 {
		return invalid("host port %d is not 1 to 65535", m.HostPort)
	}
	if m.ContainerPort < 1 || m.ContainerPort > 65535 {
		return invalid("container port %d is not 1 to 65535", m.ContainerPort)
	}
	if m.HostIP != "" {
		addr, err := netip.ParseAddr(m.HostIP)
		if err != nil {
			return invalid("host address %q is not an IP address", m.HostIP)
		}
		if addr.Zone() != "" {
			return invalid("host address %q has a zone, which no rule can match", m.HostIP)
		}
	}
	return p, nil
}

func (p wirePort) String() string {
	return fmt.Sprintf("%s:%d->%d/%s", p.HostIP, p.HostPort, p.ContainerPort, p.Protocol)
}

package outcome

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/embedcni/cni/internal/store/ports"
)

// PortError says who has a port of the host that Setup was asked to forward. It is an
// error, or a warning in Result.PortWarnings. errors.As finds the first of several.
type PortError struct {
	// The port that was asked for.
	Protocol string     // tcp, udp or sctp
	HostIP   netip.Addr // the zero Addr: all addresses of the host
	HostPort int

	// HolderIP is the address at which a container has the port; the zero Addr: all. It is
	// HostIP if no container has it.
	HolderIP netip.Addr

	// The container that has the port, from its record: its interface, and the network
	// to which that is attached. All are empty if no container has it. Of a container that
	// another program attached, which is only in libcni's cache, Owner and State are empty.
	ContainerID, Network, IfName string          `json:",omitempty"`
	Owner                        string          `json:",omitempty"` // see WithOwner
	State                        AttachmentState `json:",omitempty"`

	// Err is [ErrPortInUse], or [ErrNotHostAddress]. It is nil if read from JSON.
	Err error `json:"-"`
}

// Unwrap returns the kind of the error.
func (e *PortError) Unwrap() error { return e.Err }

// Error names the port and who has it.
func (e *PortError) Error() string {
	if errors.Is(e.Err, ErrNotHostAddress) {
		return fmt.Sprintf("host port %v: %v is %v", e.wanted(), e.HostIP, ErrNotHostAddress)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "host port %v is in use", e.wanted())
	if e.HolderIP != e.HostIP {
		fmt.Fprintf(&b, ", as %v,", e.at(e.HolderIP))
	}
	switch {
	case e.ContainerID != "":
		fmt.Fprintf(&b, " by container %s, interface %s on network %q", e.ContainerID, e.IfName, e.Network)
	default:
		b.WriteString(" by a process of the host")
	}
	switch e.State {
	case Attaching, Detaching:
		fmt.Fprintf(&b, " (%s)", e.State)
	case Failed:
		b.WriteString(", which could not be removed: call Remove again")
	}
	return b.String()
}

func (e *PortError) wanted() ports.Claim { return e.at(e.HostIP) }

func (e *PortError) at(addr netip.Addr) ports.Claim {
	return ports.Claim{Protocol: e.Protocol, Addr: addr, Port: uint16(e.HostPort)}
}

package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/ports"
	"github.com/embedcni/cni/internal/record"
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
		claims := claimsOf([]wirePort{p})
		if ports.Overlap(claimed, claims) {
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
	if !slices.Contains(ports.Protocols(), p.Protocol) {
		return invalid("protocol %q is none of tcp, udp, sctp", m.Protocol)
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

func (p wirePort) String() string {
	return fmt.Sprintf("%s:%d->%d/%s", p.HostIP, p.HostPort, p.ContainerPort, p.Protocol)
}

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

	// Err is ErrPortInUse, or ErrNotHostAddress. It is nil if read from JSON.
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

// portRangeError says that Setup could not choose ports: too few of the range are free. It
// wraps ErrPortInUse.
type portRangeError struct {
	First, Last int // see WithPortRange
	Wanted      int // ports to choose
	Free        int

	Containers []ownedPorts // ports that containers on record have
	Unrecorded int          // ports of containers that another program attached, by libcni's cache
	Processes  int          // ports that sockets on the host have
	Excluded   int          // ports that the kernel gives to sockets, or that are reserved
}

// ownedPorts are ports of containers of one owner; see WithOwner.
type ownedPorts struct {
	Owner string
	Ports int
}

// Unwrap returns ErrPortInUse.
func (e *portRangeError) Unwrap() error { return ErrPortInUse }

// Error names the range, and who has its ports.
func (e *portRangeError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d of the host ports %d to %d are free, and %d are needed", e.Free, e.First, e.Last, e.Wanted)
	for _, c := range e.Containers {
		fmt.Fprintf(&b, "; containers of %q have %d", c.Owner, c.Ports)
	}
	if e.Unrecorded > 0 {
		fmt.Fprintf(&b, "; containers of other programs have %d", e.Unrecorded)
	}
	if e.Processes > 0 {
		fmt.Fprintf(&b, "; processes of the host use %d", e.Processes)
	}
	if e.Excluded > 0 {
		fmt.Fprintf(&b, "; %d are ephemeral or reserved on the host", e.Excluded)
	}
	return b.String()
}

// takenPorts are PortErrors about containers on record, or a portRangeError.
type takenPorts struct {
	error
	holders []*record.Record
}

func (e *takenPorts) Unwrap() error { return e.error }

func heldBy(h ports.Holder, c ports.Claim) *PortError {
	return &PortError{
		Protocol: c.Protocol, HostIP: c.Addr, HostPort: int(c.Port), HolderIP: h.Claim.Addr,
		ContainerID: string(h.Record.ContainerID), Network: h.Attachment.Network, IfName: h.Attachment.IfName,
		Owner: h.Record.OwnerOf(h.Attachment), State: stateOf(h.Record, h.Attachment), Err: ErrPortInUse,
	}
}

// refuseCached returns a PortError for each wanted port of a container that another program
// attached: it is only in libcni's cache, and lives. Of those that may be gone it warns,
// because their rules may still forward the port, unless WithStrictPorts refuses them. It
// returns the chosen ports that either has, and then does nothing else.
func (op *operation) refuseCached(rec *record.Record, wanted []ports.Claim, chosen []uint16) (taken []uint16, err error) {
	found, err := op.ports.Unrecorded(rec, wanted, op.Host.EndOf)
	if err != nil {
		op.logger.Warn("the host ports of containers that other programs attached are not known", "container", op.ID, "error", err)
	}
	for _, c := range found {
		if slices.Contains(chosen, c.Wanted.Port) {
			taken = append(taken, c.Wanted.Port)
		}
	}
	if len(taken) > 0 {
		return taken, nil
	}
	var errs []error
	for _, c := range found {
		e := &PortError{
			Protocol: c.Wanted.Protocol, HostIP: c.Wanted.Addr, HostPort: int(c.Wanted.Port), HolderIP: c.Claim.Addr,
			ContainerID: string(c.Record.ContainerID), Network: c.Attachment.Network, IfName: c.Attachment.IfName, Err: ErrPortInUse,
		}
		if c.Lives || op.strictPorts {
			errs = append(errs, e)
			continue
		}
		op.logger.Warn("a port of the host is forwarded although another program's container has it, which may be gone", "container", op.ID, "error", e)
		op.portWarnings = append(op.portWarnings, e)
	}
	return nil, join(errs...)
}

// lookAtPorts warns of wanted ports that a socket on the host has, and of addresses
// that the host does not have. With WithStrictPorts it refuses them.
func (op *operation) lookAtPorts(wanted []ports.Claim) error {
	taken, err := op.Host.BoundByOthers(wanted, op.log())
	var found []*PortError
	for _, c := range taken {
		found = append(found, onHost(c, ErrPortInUse))
	}
	return op.judgePorts(found, err, wanted)
}

// judgePorts adds conflicts to the warnings, and those of the claims whose addresses the host
// does not have. With WithStrictPorts it returns them.
func (op *operation) judgePorts(found []*PortError, err error, claims []ports.Claim) error {
	foreign, ferr := ports.Foreign(claims, op.Host.HasAddress)
	for _, c := range foreign {
		found = append(found, onHost(c, ErrNotHostAddress))
	}
	err = join(err, ferr)
	if op.strictPorts {
		for _, e := range found {
			err = join(err, e)
		}
		return err
	}
	if err != nil {
		op.logger.Warn("whether ports of the host are in use is not known", "container", op.ID, "error", err)
	}
	for _, e := range found {
		op.logger.Warn("a port of the host is forwarded although it is in use, or not the host's", "container", op.ID, "error", e)
	}
	op.portWarnings = append(op.portWarnings, found...)
	return nil
}

// onHost returns the error for a wanted port that no container has.
func onHost(c ports.Claim, kind error) *PortError {
	return &PortError{Protocol: c.Protocol, HostIP: c.Addr, HostPort: int(c.Port), HolderIP: c.Addr, Err: kind}
}

// hostPorts returns the ports of the host that the attachment asks for: those in the
// capability, if a plugin of the network takes it.
func (a *attachment) hostPorts() []ports.Claim {
	mappings := a.CapabilityArgs[capPortMappings]
	if mappings == nil || !a.network.declares(capPortMappings) {
		return nil
	}
	if wire, ok := mappings.([]wirePort); ok { // nearly always
		return claimsOf(wire)
	}
	return ports.Of(mappings)
}

func claimsOf(mappings []wirePort) (claims []ports.Claim) {
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
		wanted = append(wanted, a.hostPorts()...)
	}
	return wanted
}

// mappings returns the ports that a plugin of the attachment's network was asked to
// forward.
func (a *attachment) mappings() []PortMapping {
	given := a.CapabilityArgs[capPortMappings]
	if given == nil || !a.network.declares(capPortMappings) {
		return nil
	}
	if wire, ok := given.([]wirePort); ok {
		return asMappings(wire)
	}
	data, err := json.Marshal(given)
	if err != nil {
		return nil // no plugin got it either
	}
	return mappingsIn(data)
}

// recordedMappings is mappings for an attachment on record.
func recordedMappings(n *record.Attachment) []PortMapping {
	if len(ports.ClaimsOf(n)) == 0 {
		return nil
	}
	return mappingsIn(n.Capabilities[capPortMappings])
}

// earlier returns the container's attachments to which ports may be forwarded since an
// earlier call.
func (op *operation) earlier() (sources []source) {
	own := op.attachments.names()
	for n := range op.Record.Present() {
		if own[n.IfName] || !n.Answered() {
			continue
		}
		ports := recordedMappings(n)
		if result := chain.Decode(n.Result); result != nil && len(ports) > 0 && chain.Walkable(result) == nil {
			sources = append(sources, source{n.Network, n.IfName, result, ports})
		}
	}
	return sources
}

// notePorts notes in each network of a Result, which were made of own, the ports that
// are forwarded to it.
func (r *Result) notePorts(earlier, own []source) {
	for i, forwarded := range forwardedTo(slices.Concat(earlier, own))[len(earlier):] {
		r.Networks[i].Ports = forwarded
	}
}

// mappingsIn reads the capability as plugins get it. A value of another form is no list
// of ports.
func mappingsIn(data json.RawMessage) []PortMapping {
	var wire []wirePort
	if json.Unmarshal(data, &wire) != nil {
		return nil
	}
	return asMappings(wire)
}

func asMappings(wire []wirePort) (all []PortMapping) {
	for _, p := range wire {
		all = append(all, PortMapping(p))
	}
	return all
}

// forwardedTo returns the ports that are forwarded to each network of a container. A
// port is forwarded in each family of which the network has an address; among several
// networks, the first keeps it.
func forwardedTo(sources []source) [][]PortMapping {
	all := make([][]PortMapping, len(sources))
	taken := map[bool][]ports.Claim{} // of IPv4 (true) and IPv6
	for i, s := range sources {
		if len(s.ports) == 0 {
			continue
		}
		v4, v6 := compare.FirstAddresses(s.result, s.ifName)
		own := map[bool][]ports.Claim{}
		for _, m := range s.ports {
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
func inFamily(m PortMapping, is4 bool) (c ports.Claim, ok bool) {
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

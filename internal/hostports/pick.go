package hostports

import (
	"errors"
	"log/slog"
	"slices"

	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/ports"
	"github.com/embedcni/cni/internal/sockdiag"
)

// Range is a range of ports from which some are chosen.
type Range struct {
	First, Last uint16
	Named       bool // by the caller: ports that are reserved on the host may be for this
}

// Picked is a range with the ports of it that must not be chosen.
type Picked struct {
	Range
	Excluded int // ephemeral, or reserved for others
	InUse    int // by sockets, apart from those

	avoid   map[uint16]bool
	refused []uint16
}

// Pick returns the range without ports that the kernel of the host gives to sockets, that
// are reserved there for others, and that sockets have, this process's own included. If
// the kernel cannot say which sockets there are, only records keep ports apart.
func Pick(host *hostns.NetNS, r Range, protocols []string, log *slog.Logger) (*Picked, error) {
	p := &Picked{Range: r, avoid: make(map[uint16]bool)}
	kernel, err := sockdiag.LocalPorts(host.Handle)
	if err != nil {
		return nil, err
	}
	for _, s := range append(kernel.Reserved, kernel.Ephemeral) {
		for port := int(max(s.First, r.First)); port <= int(min(s.Last, r.Last)); port++ {
			if n := uint16(port); r.excludes(kernel, n) {
				p.avoid[n] = true
			}
		}
	}
	p.Excluded = len(p.avoid)
	for _, protocol := range protocols {
		bound, err := sockdiag.Bound(host.Handle, protocol, r.First, r.Last)
		if errors.Is(err, sockdiag.ErrUnknown) {
			log.Debug("the sockets of the host are not known", "error", err)
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, s := range bound {
			if !p.avoid[s.Port] {
				p.avoid[s.Port] = true
				p.InUse++
			}
		}
	}
	return p, nil
}

// excludes reports whether a port must not be chosen, whoever has it.
func (r Range) excludes(kernel sockdiag.Local, port uint16) bool {
	reserved := kernel.IsReserved(port)
	if r.Named {
		return kernel.IsEphemeral(port) && !reserved
	}
	return kernel.IsEphemeral(port) || reserved
}

// Avoids reports whether a port must not be chosen.
func (p *Picked) Avoids(port uint16) bool { return p.avoid[port] }

// Avoid adds ports that must not be chosen: containers have them.
func (p *Picked) Avoid(all []uint16) {
	for _, port := range all {
		if !p.avoid[port] {
			p.avoid[port] = true
			p.refused = append(p.refused, port)
		}
	}
}

// Leave keeps the ports of claims from being chosen for one of the protocols. They are
// claims of the same call, which would map a port twice.
func (p *Picked) Leave(claims []ports.Claim, protocols []string) {
	for _, c := range claims {
		if slices.Contains(protocols, c.Protocol) {
			p.avoid[c.Port] = true
		}
	}
}

// Refused returns the ports that were added by Avoid.
func (p *Picked) Refused() []uint16 { return p.refused }

package cni

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/embedcni/cni/internal/lock"
	"github.com/embedcni/cni/internal/portindex"
	"github.com/embedcni/cni/internal/ports"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/sockdiag"
)

// hostPorts returns the ports of the host that the attachment asks for: those in the
// capability, if a plugin of the network takes it.
func (a *attachment) hostPorts() []ports.Claim {
	mappings := a.CapabilityArgs[capPortMappings]
	if mappings == nil || !a.network.declares(capPortMappings) {
		return nil
	}
	return ports.Of(mappings)
}

// hostPorts returns the ports that all attachments ask for.
func (all attachments) hostPorts() (wanted []ports.Claim) {
	for _, a := range all {
		wanted = append(wanted, a.hostPorts()...)
	}
	return wanted
}

// overlap reports whether a port is in both lists.
func overlap(all, others []ports.Claim) bool {
	return slices.ContainsFunc(all, func(c ports.Claim) bool { return slices.ContainsFunc(others, c.Overlaps) })
}

// portKeys returns the keys by which calls for the same ports of a host exclude each
// other.
func portKeys(host string, wanted []ports.Claim) (keys []lock.Key) {
	for _, c := range wanted {
		keys = append(keys, lock.Key{Name: fmt.Sprintf("port/%s/%s/%d", host, c.Protocol, c.Port)})
	}
	return keys
}

// beginRecord puts the record on the disk. It refuses ports of the host that another
// container on record has. From the search until the record is visible, no other call
// can do the same for one of the ports. A call that holds them waits for no other key,
// and no plugin runs meanwhile.
func (op *operation) beginRecord(ctx context.Context, rec *record.Record, early bool) (err error) {
	op.portWarnings = nil
	wanted := op.attachments.hostPorts()
	if len(wanted) == 0 {
		return op.Begin(rec, early)
	}
	if err := op.lookAtPorts(wanted); err != nil {
		return err
	}
	held, err := op.Locks.LockAll(ctx, portKeys(op.Host.String(), wanted))
	if err != nil {
		return fmt.Errorf("host ports: %w", err)
	}
	defer func() { err = join(err, held.Release()) }() // after a panic too
	if err := op.refusePorts(rec, wanted); err != nil {
		return err
	}
	if err := op.Begin(rec, early); err != nil {
		return err
	}
	op.Ports.Enter(rec)
	return nil
}

// refusePorts returns a PortError for each wanted port that another container on record
// has, on this host and since it was booted. A container has its ports until it is
// removed, even if it is dead: its rules still forward them. Of the container's own
// attachments, the first forwards.
func (op *operation) refusePorts(own *record.Record, wanted []ports.Claim) error {
	holders, err := op.Ports.Find(wanted)
	if err != nil {
		return err
	}
	holders = slices.DeleteFunc(holders, func(h portindex.Holder) bool {
		return h.Record.ContainerID == own.ContainerID || h.Record.Boot != own.Boot || h.Record.Host != "" && h.Record.Host != own.Host
	})
	var errs []error
	for _, c := range wanted {
		if i := slices.IndexFunc(holders, func(h portindex.Holder) bool { return h.Claim.Overlaps(c) }); i >= 0 {
			errs = append(errs, heldBy(holders[i], c))
		}
	}
	return join(errs...)
}

func heldBy(h portindex.Holder, c ports.Claim) *PortError {
	return &PortError{
		Protocol: c.Protocol, HostIP: c.Addr, HostPort: int(c.Port), HolderIP: h.Claim.Addr,
		ContainerID: string(h.Record.ContainerID), Network: h.Attachment.Network, IfName: h.Attachment.IfName,
		Owner: h.Record.OwnerOf(h.Attachment), State: stateOf(h.Record, h.Attachment), Err: ErrPortInUse,
	}
}

// lookAtPorts warns of wanted ports that a socket on the host has, and of addresses
// that the host does not have. With WithStrictPorts it refuses them.
func (op *operation) lookAtPorts(wanted []ports.Claim) error {
	found, err := op.portsOnHost(wanted)
	if op.strictPorts {
		for _, e := range found {
			err = join(err, e)
		}
		return err
	}
	if err != nil {
		op.logger.Warn("the sockets of the host are not known", "container", op.ID, "error", err)
	}
	for _, e := range found {
		op.logger.Warn("a port of the host is forwarded although it is in use, or not the host's", "container", op.ID, "error", e)
	}
	op.portWarnings = found
	return nil
}

// portsOnHost returns a PortError for each wanted port that a socket on the host has,
// and for each that is at an address that the host does not have. This process's own
// sockets do not count, because schedulers reserve ports by listening on them. Nor does
// UDP in the ephemeral range: most sockets there ask others, and none of them is
// disturbed, since their answers belong to flows that exist.
func (op *operation) portsOnHost(wanted []ports.Claim) (found []*PortError, err error) {
	sockets, err := op.socketsWith(wanted)
	if len(sockets) > 0 {
		inodes := make(map[uint32]bool)
		for _, s := range sockets {
			inodes[s.Inode] = true
		}
		processes := sockdiag.Holders(inodes)
		for _, c := range wanted {
			if i := slices.IndexFunc(sockets, func(s sockdiag.Socket) bool { return s.Overlaps(c) }); i >= 0 {
				p := processes[sockets[i].Inode]
				found = append(found, &PortError{
					Protocol: c.Protocol, HostIP: c.Addr, HostPort: int(c.Port), HolderIP: sockets[i].Addr,
					PID: p.PID, Process: p.Name, Err: ErrPortInUse,
				})
			}
		}
	}
	known := make(map[netip.Addr]bool)
	for _, c := range wanted {
		has, ok := known[c.Addr]
		if !ok && c.Addr.IsValid() && !c.Addr.IsUnspecified() {
			var herr error
			if has, herr = op.Host.HasAddress(c.Addr); herr != nil {
				has, err = true, join(err, fmt.Errorf("look up address %v of the host: %w", c.Addr, herr))
			}
			known[c.Addr], ok = has, true
		}
		if ok && !has {
			found = append(found, &PortError{Protocol: c.Protocol, HostIP: c.Addr, HostPort: int(c.Port), Err: ErrNotHostAddress})
		}
	}
	return found, err
}

// socketsWith returns the sockets of others on the host that have one of the ports.
func (op *operation) socketsWith(wanted []ports.Claim) (sockets []sockdiag.Socket, err error) {
	for _, protocol := range ports.Protocols() {
		of := slices.DeleteFunc(slices.Clone(wanted), func(c ports.Claim) bool { return c.Protocol != protocol })
		if len(of) == 0 {
			continue
		}
		bound, berr := sockdiag.Bound(op.Host.Handle, protocol)
		if errors.Is(berr, sockdiag.ErrUnknown) {
			op.logger.Debug("the sockets of the host are not known", "container", op.ID, "error", berr)
			continue
		}
		bound = slices.DeleteFunc(bound, func(s sockdiag.Socket) bool { return !slices.ContainsFunc(of, s.Overlaps) })
		if protocol == "udp" && len(bound) > 0 {
			first, last, eerr := sockdiag.Ephemeral(op.Host.Handle)
			berr = join(berr, eerr)
			bound = slices.DeleteFunc(bound, func(s sockdiag.Socket) bool { return first <= s.Port && s.Port <= last })
		}
		sockets, err = append(sockets, bound...), join(err, berr)
	}
	if len(sockets) == 0 {
		return nil, err
	}
	own, oerr := sockdiag.Own()
	return slices.DeleteFunc(sockets, func(s sockdiag.Socket) bool { return own[s.Inode] }), join(err, oerr)
}

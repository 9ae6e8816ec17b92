// Package hostports finds what stands in the way of forwarding ports of a host, apart
// from the containers on record, which package portindex has: sockets of other
// processes, and addresses that the host does not have.
package hostports

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/lock"
	"github.com/embedcni/cni/internal/ports"
	"github.com/embedcni/cni/internal/sockdiag"
)

// Conflict is a wanted port that a socket on the host has, or that is at an address
// that the host does not have.
type Conflict struct {
	Wanted  ports.Claim
	Foreign bool // the host does not have the address; the rest is then zero

	At     netip.Addr       // where the socket has the port; the zero Addr: all addresses
	Holder sockdiag.Process // of the socket; PID is 0 if no visible process has it
}

// Keys returns the keys by which calls for the same ports of a host exclude each other.
func Keys(host string, wanted []ports.Claim) (keys []lock.Key) {
	for _, c := range wanted {
		keys = append(keys, lock.Key{Name: fmt.Sprintf("port/%s/%s/%d", host, c.Protocol, c.Port)})
	}
	return keys
}

// OnHost returns a Conflict for each wanted port that a socket on the host has, and for
// each that is at an address that the host does not have. With an error these are the
// known ones. Sockets that the kernel cannot list are no error, and go to the log.
//
// This process's own sockets do not count, because schedulers reserve ports by
// listening on them. Nor does UDP in the ephemeral range: most sockets there ask
// others, and none of them is disturbed, since their answers belong to flows that
// exist.
func OnHost(host *hostns.NetNS, wanted []ports.Claim, log *slog.Logger) (found []Conflict, err error) {
	sockets, err := socketsWith(host, wanted, log)
	if len(sockets) > 0 {
		inodes := make(map[uint32]bool)
		for _, s := range sockets {
			inodes[s.Inode] = true
		}
		found = taken(wanted, sockets, sockdiag.Holders(inodes))
	}
	elsewhere, ferr := foreign(wanted, host.HasAddress)
	return append(found, elsewhere...), errors.Join(err, ferr)
}

// Foreign returns a Conflict for each wanted port that is at an address that the host does
// not have. With an error these are the known ones.
func Foreign(host *hostns.NetNS, wanted []ports.Claim) ([]Conflict, error) {
	return foreign(wanted, host.HasAddress)
}

// taken returns a Conflict for each wanted port that one of the sockets has.
func taken(wanted []ports.Claim, sockets []sockdiag.Socket, processes map[uint32]sockdiag.Process) (found []Conflict) {
	for _, c := range wanted {
		if i := slices.IndexFunc(sockets, func(s sockdiag.Socket) bool { return s.Overlaps(c) }); i >= 0 {
			found = append(found, Conflict{Wanted: c, At: sockets[i].Addr, Holder: processes[sockets[i].Inode]})
		}
	}
	return found
}

// foreign returns a Conflict for each wanted port at an address that the host does not
// have. It asks for each address once.
func foreign(wanted []ports.Claim, hasAddress func(netip.Addr) (bool, error)) (found []Conflict, err error) {
	known := make(map[netip.Addr]bool)
	for _, c := range wanted {
		if !c.Addr.IsValid() || c.Addr.IsUnspecified() {
			continue
		}
		has, ok := known[c.Addr]
		if !ok {
			var herr error
			if has, herr = hasAddress(c.Addr); herr != nil {
				has, err = true, errors.Join(err, fmt.Errorf("look up address %v of the host: %w", c.Addr, herr))
			}
			known[c.Addr] = has
		}
		if !has {
			found = append(found, Conflict{Wanted: c, Foreign: true})
		}
	}
	return found, err
}

// socketsWith returns the sockets of other processes on the host that have one of the
// ports.
func socketsWith(host *hostns.NetNS, wanted []ports.Claim, log *slog.Logger) (sockets []sockdiag.Socket, err error) {
	for _, protocol := range ports.Protocols() {
		of := slices.DeleteFunc(slices.Clone(wanted), func(c ports.Claim) bool { return c.Protocol != protocol })
		if len(of) == 0 {
			continue
		}
		first, last := span(of)
		bound, berr := sockdiag.Bound(host.Handle, protocol, first, last)
		if errors.Is(berr, sockdiag.ErrUnknown) {
			log.Debug("the sockets of the host are not known", "error", berr)
			continue
		}
		bound = slices.DeleteFunc(bound, func(s sockdiag.Socket) bool { return !slices.ContainsFunc(of, s.Overlaps) })
		if protocol == "udp" && len(bound) > 0 {
			first, last, eerr := sockdiag.Ephemeral(host.Handle)
			berr = errors.Join(berr, eerr)
			bound = slices.DeleteFunc(bound, func(s sockdiag.Socket) bool { return first <= s.Port && s.Port <= last })
		}
		sockets, err = append(sockets, bound...), errors.Join(err, berr)
	}
	if len(sockets) == 0 {
		return nil, err
	}
	own, oerr := sockdiag.Own()
	return slices.DeleteFunc(sockets, func(s sockdiag.Socket) bool { return own[s.Inode] }), errors.Join(err, oerr)
}

// span returns the lowest and the highest port of some claims.
func span(claims []ports.Claim) (first, last uint16) {
	first = claims[0].Port
	for _, c := range claims {
		first, last = min(first, c.Port), max(last, c.Port)
	}
	return first, last
}

package engine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/embedcni/cni/internal/store/ports"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/outcome"
)

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
func (e *portRangeError) Unwrap() error { return outcome.ErrPortInUse }

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

// Format prints the errors as they print themselves.
func (e *takenPorts) Format(s fmt.State, verb rune) {
	fmt.Fprintf(s, fmt.FormatString(s, verb), e.error)
}

func heldBy(h ports.Holder, c ports.Claim) *outcome.PortError {
	return &outcome.PortError{
		Protocol: c.Protocol, HostIP: c.Addr, HostPort: int(c.Port), HolderIP: h.Claim.Addr,
		ContainerID: string(h.Record.ContainerID), Network: h.Attachment.Network, IfName: h.Attachment.IfName,
		Owner: h.Record.OwnerOf(h.Attachment), State: StateOf(h.Record, h.Attachment), Err: outcome.ErrPortInUse,
	}
}

// refuseCached returns a PortError for each wanted port of a container that another program
// attached: it is only in libcni's cache, and lives. Of those that may be gone it warns,
// because their rules may still forward the port, unless WithStrictPorts refuses them. It
// returns the chosen ports that either has, and then does nothing else.
func (r *reservation) refuseCached(wanted []ports.Claim) (taken []uint16, err error) {
	found, err := r.op.eng.ports.Unrecorded(r.rec, wanted, r.op.c.Place.Host.EndOf)
	if err != nil {
		r.op.log().Warn("the host ports of containers that other programs attached are not known", "error", err)
	}
	for _, c := range found {
		if slices.Contains(r.chosen, c.Wanted.Port) {
			taken = append(taken, c.Wanted.Port)
		}
	}
	if len(taken) > 0 {
		return taken, nil
	}
	var errs []error
	for _, c := range found {
		e := heldBy(c.Holder, c.Wanted)
		e.Owner, e.State = "", "" // the cache says neither
		if c.Lives || r.op.eng.opts.StrictPorts {
			errs = append(errs, e)
			continue
		}
		r.op.log().Warn("a port of the host is forwarded although another program's container has it, which may be gone", "error", e)
		r.warnings = append(r.warnings, e)
	}
	return nil, Join(errs...)
}

// lookAt warns of wanted ports that a socket on the host has, and of addresses
// that the host does not have. With WithStrictPorts it refuses them.
func (r *reservation) lookAt(wanted []ports.Claim) error {
	taken, err := r.op.c.Place.Host.BoundByOthers(wanted, r.op.log())
	var found []*outcome.PortError
	for _, c := range taken {
		found = append(found, onHost(c, outcome.ErrPortInUse))
	}
	return r.judge(found, err, wanted)
}

// judge adds conflicts to the warnings, and those of the claims whose addresses the host
// does not have. With WithStrictPorts it returns them.
func (r *reservation) judge(found []*outcome.PortError, err error, claims []ports.Claim) error {
	foreign, ferr := ports.Foreign(claims, r.op.c.Place.Host.HasAddress)
	for _, c := range foreign {
		found = append(found, onHost(c, outcome.ErrNotHostAddress))
	}
	err = Join(err, ferr)
	if r.op.eng.opts.StrictPorts {
		for _, e := range found {
			err = Join(err, e)
		}
		return err
	}
	if err != nil {
		r.op.log().Warn("whether ports of the host are in use is not known", "error", err)
	}
	for _, e := range found {
		r.op.log().Warn("a port of the host is forwarded although it is in use, or not the host's", "error", e)
	}
	r.warnings = append(r.warnings, found...)
	return nil
}

// onHost returns the error for a wanted port that no container has.
func onHost(c ports.Claim, kind error) *outcome.PortError {
	return &outcome.PortError{Protocol: c.Protocol, HostIP: c.Addr, HostPort: int(c.Port), HolderIP: c.Addr, Err: kind}
}

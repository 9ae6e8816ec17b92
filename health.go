package cni

import (
	"context"
	"fmt"
	"time"

	"github.com/embedcni/cni/internal/engine/engine"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/outcome"
)

// HealthOptions configures Health. The zero HealthOptions look at all containers of
// this owner.
type HealthOptions struct {
	// Containers are the IDs of the containers to look at, whoever has attached them. If
	// it is empty, Health looks at this owner's attachments of all containers on record.
	Containers []string

	// NetNS has the path of the network namespace in which a container's task lives, by
	// the ID of the container, as far as the caller knows it. A container that is attached
	// in another one is [StateElsewhere]: by the device and inode of the namespace and the
	// machine's boot, rather than by the path.
	NetNS map[string]string

	// Once looks only once at a container that differs. Without it Health looks again, so
	// that what others take away for a moment, as a reload of a firewall does, is not
	// missing. It is for callers that repair: Repair compares again itself.
	Once bool

	// WithoutCheck asks no plugin for CHECK. Then only the comparison decides.
	WithoutCheck bool
	// CheckBudget limits the time that all CHECKs take together. Zero is 30 seconds. A
	// negative budget has no limit but Timeouts.Check, for each plugin.
	CheckBudget time.Duration
}

// Health looks at containers, and returns its verdict on each, in the order of the IDs:
// whether all that its Setup made is still there, on the host and in its namespace. It
// changes nothing.
//
// Health compares the record of each container with the kernel: interfaces, addresses,
// routes, packet filter rules, forwarded ports, queues, bridges, sysctls and
// reservations. It reads the host once for all containers, and enters the namespace of
// each once. No plugin runs for that: the work of an executable of a reference plugin's
// type is compared by the built-in plugin of the type. A container that differs is looked
// at again, so that one that is being attached or removed is not reported as broken.
//
// Then Health asks the plugins that may know more for CHECK: executables, plugins that
// the program has registered, and those with such an IPAM plugin. Several containers are
// asked at once, each while it is locked as during Check. A container that another call
// has locked is not asked.
//
// The error is the reason why Health could not look at all; it says nothing about a
// container. Health is safe for concurrent use. It waits for another call for a quarter
// of a second at most.
func (r *Runtime) Health(ctx context.Context, o HealthOptions) ([]Health, error) {
	all, err := r.current.Load().eng.Health(ctx, engine.HealthOptions(o))
	if err != nil {
		return nil, fmt.Errorf("health: %w", err)
	}
	return all, nil
}

// HealthState is the verdict on a container.
type HealthState = outcome.HealthState

const (
	StateHealthy     HealthState = outcome.StateHealthy     // nothing is missing or different, as far as anybody can tell
	StateBroken      HealthState = outcome.StateBroken      // something is missing or different
	StateUnknown     HealthState = outcome.StateUnknown     // nobody can tell; Health.Reason says why
	StateGone        HealthState = outcome.StateGone        // its network namespace is gone; Remove or Recover removes it
	StateNotAttached HealthState = outcome.StateNotAttached // no attachment of it is on record
	StateElsewhere   HealthState = outcome.StateElsewhere   // it is attached in another namespace than in HealthOptions.NetNS
)

// Health is the verdict of [Runtime.Health] on one container: its state, the differences, and
// the reason if nobody can tell. [outcome.Health] has its fields. Printed it has a line for the
// container, and one for each difference. Its method Err is nil if the container is healthy.
type Health = outcome.Health

// Difference is a part of an attachment that is missing, or is not as its ADD made it; see
// [outcome.Difference]. Printed it is a line.
type Difference = outcome.Difference

// RepairOptions configures Repair.
type RepairOptions struct {
	// Inside repairs the container's own namespace too: the state of its interface,
	// addresses, routes and sysctls. Otherwise they are left as they are, because the
	// container may have changed them itself, as a VPN does with its routes.
	//
	// Where the ADD has the kernel look for other machines with an IPv6 address, so does
	// the repair. It waits for that for 3 s in all; what takes longer is left to the
	// kernel, which uses no address before it has checked it (RFC 4862, section 5.4).
	Inside bool
	// Unheld leaves held parts as they are (see package guard), and reports them as
	// remaining, with [ErrHeld].
	Unheld bool
	// Want chooses among the differences that could be repaired; nil chooses all. It is
	// called with the same one several times, and by several goroutines.
	Want func(containerID string, d Difference) bool
}

// Repair adds the parts of a container's attachments that are on record and missing: the
// bridge, its addresses, the port on it, routes to the container, masquerading, forwarded
// ports, other rules of packet filters, queues. A firewall reload, a mistaken "ip link",
// or another program may have removed them.
//
// Repair locks the container, reads its record, compares that with the kernel, adds what
// is missing, and compares again. It removes and overwrites nothing: what differs
// remains, with the reason. It does not take the interface from the container, nor
// change an address, so that connections live on. A bridge that no Setup of this library
// made is its administrator's, and gets only the container's port and rules back.
//
// The parts of all built-in types are repaired in process, also if executables have made
// them. Afterwards plugins are asked for CHECK as by Health, so that a container in which
// Repair finds nothing wrong is not broken for Health. The parts of other plugins are not
// repaired: the specification forbids a second ADD without a DEL, so that only [Runtime.Remove] and
// [Runtime.Setup] can make them again.
//
// Repair can be repeated, also after it was killed. A container that is not attached is
// [ErrNotAttached]. [ErrNotRepairable], [ErrHostNetNS] or a *[RecordError] is the reason why
// nothing was done for the container, for example because its namespace is gone or its
// record damaged. Attachments that are being made or removed are not repaired. Repair
// waits for other calls for the container, and for GC. It is safe for concurrent use.
func (r *Runtime) Repair(ctx context.Context, id string, o RepairOptions) (*RepairReport, error) {
	report, err := r.current.Load().eng.Repair(ctx, record.ID(id), engine.RepairOptions(o))
	if err != nil {
		err = fmt.Errorf("repair container %q: %w", id, err)
	}
	return report, err
}

// RepairReport is the outcome of [Runtime.Repair] for one container: what is there again, what
// remains and why. [outcome.RepairReport] has its fields. Its method Err is nil if the
// container is known to be as its Setup made it.
type RepairReport = outcome.RepairReport

// RepairAll repairs this owner's attachments of several containers, as Repair does, but
// many at a time: it reads the host once for all that it can lock, and changes the packet
// filter once. It asks no plugin for CHECK. It is for a loss that many containers share,
// such as flushed rules; package guard calls it.
//
// The reports are in the order of the IDs. That of a container that could not be repaired
// has the reason in Unknown: [ErrBusy], if another call had it locked, and those that Repair
// returns. The error is the reason why nothing could be done at all.
func (r *Runtime) RepairAll(ctx context.Context, ids []string, o RepairOptions) (reports []*RepairReport, err error) {
	e := r.current.Load().eng
	if err := e.RefuseInside(ctx); err != nil {
		return nil, fmt.Errorf("repair: %w", err)
	}
	all := make([]record.ID, len(ids))
	for i, id := range ids {
		all[i] = record.ID(id)
	}
	done := e.RepairAll(ctx, all, engine.RepairOptions(o))
	for _, id := range all {
		reports = append(reports, done[id])
	}
	return reports, nil
}

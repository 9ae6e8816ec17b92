package cni

import (
	"context"
	"fmt"
	"time"

	"github.com/embedcni/cni/internal/engine/engine"
	"github.com/embedcni/cni/internal/engine/health"
	"github.com/embedcni/cni/internal/store/record"
)

// HealthOptions configures Health. The zero HealthOptions look at all containers of
// this owner.
type HealthOptions struct {
	// Containers are the IDs of the containers to look at, whoever has attached them. If
	// it is empty, Health looks at this owner's attachments of all containers on record.
	Containers []string

	// NetNS has the path of the network namespace in which a container's task lives, by
	// the ID of the container, as far as the caller knows it. A container that is attached
	// in another one is StateElsewhere: by the device and inode of the namespace and the
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
type HealthState = health.State

const (
	// StateHealthy: nothing is missing or different, as far as anybody can tell; see
	// Health.Uncompared.
	StateHealthy = health.Healthy
	// StateBroken: something is missing or different; see Health.Differences.
	StateBroken = health.Broken
	// StateUnknown: it is not known whether the container is healthy; see Health.Reason.
	StateUnknown = health.Unknown
	// StateGone: its network namespace is gone, or was of an earlier boot of the machine.
	// Remove or Recover removes it.
	StateGone = health.Gone
	// StateNotAttached: no attachment of it is on record.
	StateNotAttached = health.NotAttached
	// StateElsewhere: it is attached in another network namespace than the one in
	// HealthOptions.NetNS, or that path leads to none.
	StateElsewhere = health.Elsewhere
)

// Health is the verdict on one container. Printed it has a line for the container, and one
// for each difference. Its JSON has the names of the fields, and the text of Reason.
//
//	ContainerID string // or, for a record that names none, "record" and its file's name
//	State       HealthState
//
//	// Differences are the parts that are missing or different. Only a broken container
//	// has any.
//	Differences []Difference
//
//	// Reason is why the state is unknown, or the container gone; see below.
//	Reason error
//
//	// Uncompared are the types of plugins whose part nobody has compared, and whose CHECK
//	// was not asked because HealthOptions or the network's disableCheck forbid it.
//	Uncompared []string
//
// Its method Err returns nil if the container is healthy, and otherwise an error with the
// differences and the reason. errors.Is and errors.As find what Reason and the differences
// wrap.
//
// A broken container has a Reason too if a part of it could not be examined, and a healthy
// one if the CHECK of a plugin has failed over a difference that does not matter and that
// nobody restores, such as another hardware address of the bridge. If the CHECK of a plugin
// fails for healthy containers too, and the comparison finds nothing wrong, the state is
// unknown: the bridge plugin's does without an IPAM plugin, and others of the reference
// plugins do in some configurations. These errors are among the reasons:
//
//   - context.DeadlineExceeded: a plugin took too long for CHECK, or the budget was used up
//   - ErrPluginKilled, ErrNoAnswer: a plugin ended without an answer
//   - ErrPluginNotReady: a plugin wants to be asked later, or is not available
//   - ErrNoCheck: the configuration is older than CHECK
//   - ErrPluginNotFound, ErrInsecureFile
//   - ErrBusy: another call for the container is in progress
//   - ErrInvalidNetNS: its path no longer leads to its namespace
//   - ErrHostNetNS: the namespace in which its plugins ran is gone, or out of reach
//   - *RecordError
type Health = engine.Health

// Difference is a part of an attachment that is missing, or is not as its ADD made it.
// Printed it is a line. Its JSON has the names of the fields, and the text of Err.
//
//	Network, IfName string
//	Plugin          string // the type of the plugin whose part it is
//
//	// Kind is the kind of the object: interface, address, route, queue, bridge, bridge port,
//	// sysctl, reservation (of an address, by an IPAM plugin), rule (of a packet filter), port
//	// (of the host, forwarded to the container), zone (of firewalld), or check: the CHECK of a
//	// plugin has failed, and only that plugin knows more than Err.
//	Kind   string
//	Inside bool   // it is in the container's namespace; else it is on the host
//	Object string // its name: "vethab12", "10.1.0.1/24 on cni0", "tcp 8080"
//	Wanted string // its recorded value
//	Found  string // its value now; empty if it is missing
//
//	// Repairable reports whether Repair can put it right. Inside a container Repair
//	// changes nothing unless it is asked to. Otherwise Why says why not.
//	Repairable bool
//	Why        string
//
//	Err error // the error of CHECK for it
type Difference = engine.Difference

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
	// remaining, with ErrHeld.
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
// repaired: the specification forbids a second ADD without a DEL, so that only Remove and
// Setup can make them again.
//
// Repair can be repeated, also after it was killed. A container that is not attached is
// ErrNotAttached. ErrNotRepairable, ErrHostNetNS or a *RecordError is the reason why
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

// RepairReport is the outcome of Repair for one container. Printed it has a line for each
// thing that was missing, or is. Its JSON has the names of the fields, and the texts of
// errors.
//
//	ContainerID string
//	Repaired    []Difference // were missing, and are there again
//	Remaining   []struct {   // are missing or different still
//		Difference
//		// Reason is ErrNotRepairable, ErrInContainer, ErrHeld, the *Error of a repair that
//		// failed, or that RepairOptions.Want has not chosen it.
//		Reason error
//	}
//	// Unknown has an *Error for each part that could not be judged: the attachment is
//	// being made or removed, the comparison failed, or the CHECK of a plugin that is not
//	// built in failed and may be right. It is ErrNotRepairable unless another attempt may
//	// succeed.
//	Unknown []error
//
// Its method Err returns nil if the container is known to be as its Setup made it, and
// otherwise all reasons.
type RepairReport = engine.RepairReport

// RepairAll repairs this owner's attachments of several containers, as Repair does, but
// many at a time: it reads the host once for all that it can lock, and changes the packet
// filter once. It asks no plugin for CHECK. It is for a loss that many containers share,
// such as flushed rules; package guard calls it.
//
// The reports are in the order of the IDs. That of a container that could not be repaired
// has the reason in Unknown: ErrBusy, if another call had it locked, and those that Repair
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

package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/container"
	"github.com/embedcni/cni/internal/health"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/runner"
)

var (
	// ErrNotRepairable: Repair cannot, or must not, make a container or a part of it
	// again. The error says why, and what to do instead.
	ErrNotRepairable = errors.New("not repairable")
	// ErrInContainer: something is missing in the container's namespace, in which Repair
	// changes nothing unless RepairOptions.Inside is set.
	ErrInContainer = errors.New("in the container's namespace, which is its own")
)

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
	// Unheld leaves what is held, see package guard; it remains, for ErrHeld.
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
	s := r.current.Load()
	report, err := s.repair(ctx, record.ID(id), o, true)
	if err != nil {
		err = fmt.Errorf("repair container %q: %w", id, err)
	}
	return report, err
}

// RepairReport is the outcome of Repair for one container.
type RepairReport struct {
	ContainerID string
	// Repaired were missing, and are there again.
	Repaired []Difference
	// Remaining are missing or different still.
	Remaining []Remaining
	// Unknown has an *Error for each part that could not be judged: the attachment is
	// being made or removed, the comparison failed, or the CHECK of a plugin that is not
	// built in failed and may be right. It is ErrNotRepairable unless another attempt may succeed.
	Unknown []error
}

// Remaining is a difference that Repair has left.
type Remaining struct {
	Difference
	// Reason is ErrNotRepairable, ErrInContainer, ErrHeld, the *Error of a repair that
	// failed, or that RepairOptions.Want has not chosen it.
	Reason error
}

// Err returns nil if the container is known to be as its Setup made it, and otherwise
// all reasons.
func (r *RepairReport) Err() error {
	var errs []error
	for _, left := range r.Remaining {
		errs = append(errs, fmt.Errorf("%v: %w", left.Difference, left.Reason))
	}
	return join(append(errs, r.Unknown...)...)
}

// String has a line for each thing that was missing, or is.
func (r *RepairReport) String() string {
	var lines []string
	for _, d := range r.Repaired {
		lines = append(lines, fmt.Sprintf("%s: repaired: %v", r.ContainerID, d))
	}
	for _, left := range r.Remaining {
		lines = append(lines, fmt.Sprintf("%s: remains: %v: %v", r.ContainerID, left.Difference, left.Reason))
	}
	for _, err := range r.Unknown {
		lines = append(lines, fmt.Sprintf("%s: unknown: %v", r.ContainerID, err))
	}
	return strings.Join(lines, "\n")
}

// MarshalJSON encodes the report as an object with the names of its fields. Errors
// become their texts.
func (r *RepairReport) MarshalJSON() ([]byte, error) {
	type plain RepairReport
	unknown := []string{}
	for _, err := range r.Unknown {
		unknown = append(unknown, err.Error())
	}
	return json.Marshal(struct {
		plain
		Unknown []string
	}{plain(*r), unknown})
}

// MarshalJSON encodes the difference with its reason as text.
func (r Remaining) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Difference Difference
		Reason     string
	}{r.Difference, textOf(r.Reason)})
}

// repair repairs a container, and asks its plugins for CHECK if asks is set. The report is
// valid with an error.
func (s *snapshot) repair(ctx context.Context, id record.ID, o RepairOptions, asks bool) (*RepairReport, error) {
	op, err := s.beginRepair(ctx, id, true)
	if err != nil {
		return nil, err
	}
	defer op.end()
	if err := op.recallToRepair(); err != nil {
		return nil, err
	}
	holds, release, err := op.heldNow(ctx, o)
	if err != nil {
		return nil, err
	}
	defer release()
	report := &RepairReport{ContainerID: string(id)}
	var all attachments
	for _, a := range op.attachments {
		if n := a.entry(); n == nil || op.Record.IsUnfinished(n) {
			report.Unknown = append(report.Unknown, a.error(repairOp, errUnfinished))
		} else {
			all = append(all, a)
		}
	}
	for _, r := range repairLocked(ctx, all, o, holds, asks, map[record.ID]*RepairReport{id: report}) {
		err = join(err, r.Err)
	}
	return report, err
}

// beginRepair locks the container, as for an ADD. Unless it waits, it returns nil for one
// that is locked.
func (s *snapshot) beginRepair(ctx context.Context, id record.ID, waits bool) (*operation, error) {
	if err := validateID(id); err != nil {
		return nil, err
	}
	host, err := s.Hosts.Open(s.hostNetNS)
	if err != nil {
		return nil, err
	}
	op, locked := &operation{snapshot: s, Container: s.New(id, host)}, true
	if waits {
		err = op.lock(ctx, container.Access{})
	} else {
		locked, err = op.TryLock()
	}
	if !locked || err != nil {
		return nil, join(err, host.Close())
	}
	return op, nil
}

// recallToRepair finds the attachments in the record. It refuses a container that
// nothing may be added to.
func (op *operation) recallToRepair() error {
	damage, err := op.load()
	switch {
	case err != nil:
		return err
	case damage != nil:
		return fmt.Errorf("%w: its record is damaged; call Remove if the container is gone: %w", ErrNotRepairable, damage)
	case op.Record == nil:
		return ErrNotAttached
	case op.Record.Warm:
		return fmt.Errorf("a pool made it ahead of time, and nobody has it yet: %w", ErrNotAttached)
	}
	if op.attachments, err = op.enterRecorded(false); err != nil {
		return err
	}
	return op.refuseDead()
}

// refuseDead returns an error if the container may be dead.
func (op *operation) refuseDead() error {
	gone, err := op.OutOfReach()
	if err == nil || errors.Is(err, ErrHostNetNS) {
		return err
	}
	if gone {
		err = fmt.Errorf("%w; call Remove or Recover", err)
	}
	return fmt.Errorf("%w: %w", ErrNotRepairable, err)
}

// errUnfinished: an attachment cannot be expected to be whole.
var errUnfinished = fmt.Errorf("%w: its Setup was cut short, or its removal has begun; Remove or Recover ends it", ErrNotRepairable)

// repairLocked repairs attachments of locked containers together, and adds the outcomes to
// the reports, by container. The Err of each is the reason why it could not be repaired to
// the end; the report is valid with it. With asks, it asks the plugins for CHECK.
func repairLocked(ctx context.Context, all attachments, o RepairOptions, holds []record.Hold, asks bool, reports map[record.ID]*RepairReport) (repairs []*repairing) {
	var group []*health.Repairing
	var in []context.Context
	var end []func(error)
	for _, a := range all {
		its, span := runner.NetworkSpan(ctx, "cni.repairNetwork", a.network.config.Name, a.IfName)
		in, end = append(in, its), append(end, func(err error) { runner.EndSpan(span, err) })
		r := a.repairing(o, holds)
		repairs, group = append(repairs, r), append(group, r.Repairing)
	}
	health.Repair(ctx, group)
	for i, r := range repairs {
		report := reports[r.op.ID]
		r.report(in[i], report)
		if r.Err == nil && asks {
			r.Err = r.ask(in[i], report) // nobody else can compare the parts of these plugins
		}
		end[i](r.Err)
		r.Err = r.errors(repairOp, r.Err)
	}
	return repairs
}

// repairOp is the Op of a repair's errors and events.
const repairOp = runner.VerbRepair

// repairing is the repair of one attachment.
type repairing struct {
	*attachment
	*health.Repairing
	held bool // nothing of it is wanted, since it is held
}

// repairPatience is the time for which the repair of one container waits, in all, for
// work of the kernel: by default it looks for duplicates of an IPv6 address for up to two
// seconds, and for as long as an administrator likes.
const repairPatience = 3 * time.Second

func (a *attachment) repairing(o RepairOptions, holds []record.Hold) *repairing {
	if a.op.patience == nil {
		a.op.patience = caller.NewPatience(repairPatience)
	}
	its := a.runner()
	its.Given.Patience = a.op.patience
	r := &repairing{attachment: a, Repairing: &health.Repairing{
		Runner: its, Host: a.op.Host, Container: a.inside(), Compare: a.compare, Inside: o.Inside,
	}}
	r.held = o.Unheld && slices.ContainsFunc(holds, func(h record.Hold) bool { return h.Holds(a.op.Record, a.network.config.Name) })
	if r.held || o.Want != nil {
		r.Want = func(d compare.Difference) bool { return !r.held && o.Want(string(a.op.ID), r.difference(d)) }
	}
	return r
}

// report adds the outcome to the report, and reports it to the log and the observer.
func (r *repairing) report(ctx context.Context, report *RepairReport) {
	log := r.op.log().With("network", r.network.config.Name, "interface", r.IfName)
	for _, d := range r.Repaired {
		log.Info("repaired", "plugin", d.Plugin, "kind", d.Kind, "object", d.Object, "wanted", d.Wanted)
		report.Repaired = append(report.Repaired, r.difference(d))
	}
	for _, left := range r.Left {
		if left.Failed {
			log.Warn("not repaired", "plugin", left.Plugin, "kind", left.Kind, "object", left.Object, "error", left.Reason)
		}
		report.Remaining = append(report.Remaining, Remaining{r.difference(left.Difference), r.asPublic(left.Reason)})
	}
	r.Report(ctx)
}

func (r *repairing) difference(d compare.Difference) Difference {
	return differenceOf(r.network.config.Name, r.IfName, d)
}

// asPublic adds this package's sentinels to the reason why a difference remains.
func (r *repairing) asPublic(reason error) error {
	switch {
	case r.held && errors.Is(reason, health.ErrNotWanted):
		return ErrHeld
	case errors.Is(reason, health.ErrNotAsked):
		return &tagged{reason, ErrInContainer}
	case errors.Is(reason, health.ErrNotAddable), errors.Is(reason, health.ErrReturned):
		return &tagged{reason, ErrNotRepairable}
	}
	return reason
}

// errOwnPlugin: an executable of a type that is not built in, or a plugin of the
// program, has made a part.
var errOwnPlugin = fmt.Errorf("%w: only the plugin itself knows its part, and the specification forbids a second ADD without a DEL; "+
	"Remove and Setup make it again", ErrNotRepairable)

// ask asks the plugins for CHECK, as Health does, and reports those that find something
// wrong, and those that give no answer about a part that nobody else can compare. It
// returns the cause if ctx ends.
func (r *repairing) ask(ctx context.Context, report *RepairReport) error {
	last := r.Last
	if last.Err != nil {
		report.Unknown = append(report.Unknown, r.errors(repairOp, last.Err))
	}
	if len(last.Differences) > 0 { // the plugins whose parts were compared say no more than these
		maps.DeleteFunc(last.Asks, func(position int, _ bool) bool {
			p := r.network.config.Plugins[position].Network
			return last.Covers(p.Type, p.IPAM.Type)
		})
	}
	if !last.WantsCheck() {
		return nil
	}
	r.attachment.ask(ctx, last)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	err := last.Asked.Failed
	if err == nil && len(last.Uncompared) > 0 {
		err = last.Asked.Unknown
	}
	if err != nil {
		report.Unknown = append(report.Unknown, &tagged{fmt.Errorf("%w; %w", err, errOwnPlugin), ErrNotRepairable})
	}
	return nil
}

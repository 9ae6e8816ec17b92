package cni

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/embedcni/cni/internal/engine/engine"
	"github.com/embedcni/cni/internal/engine/health"
	"github.com/embedcni/cni/internal/run/runner"
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

// Health looks at containers, and returns its verdict on each: whether all that its
// Setup made is still there, on the host and in its namespace. It changes nothing.
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
func (r *Runtime) Health(ctx context.Context, o HealthOptions) (*HealthReport, error) {
	s := r.current.Load()
	found, err := s.eng.Health(ctx, engine.HealthOptions(o))
	if err != nil {
		return nil, fmt.Errorf("health: %w", err)
	}
	report := &HealthReport{Compared: found.Compared, Checks: HealthChecks(found.Checks), seen: found.Seen}
	for _, v := range found.Containers {
		report.Containers = append(report.Containers, Health{v.ContainerID, HealthState(v.State), differences(v.Differences), v.Reason, v.Uncompared})
	}
	return report, nil
}

// HealthReport has the verdict on each container that Health has looked at.
type HealthReport struct {
	Containers []Health // in the order of their IDs
	// Compared is the time that the comparison took.
	Compared time.Duration
	Checks   HealthChecks

	// seen are the records at the verdicts on the containers that the caller has named, for
	// Replace; nil for one that was not attached.
	seen map[string]*record.Record
}

// Of returns the verdict on a container, and reports whether there is one.
func (r *HealthReport) Of(id string) (Health, bool) {
	i := slices.IndexFunc(r.Containers, func(h Health) bool { return h.ContainerID == id })
	if i < 0 {
		return Health{}, false
	}
	return r.Containers[i], true
}

// Count returns the number of containers in a state.
func (r *HealthReport) Count(state HealthState) (n int) {
	for _, h := range r.Containers {
		if h.State == state {
			n++
		}
	}
	return n
}

// String has the verdict on each container, and a line about the CHECKs if there were
// any.
func (r *HealthReport) String() string {
	var lines []string
	for _, h := range r.Containers {
		lines = append(lines, h.String())
	}
	if c := r.Checks; c.Asked+c.NotAsked > 0 {
		lines = append(lines, fmt.Sprintf("CHECK: %d asked, %d failed, %d gave no answer; %d attachments not asked", c.Asked, c.Failed, c.Unanswered, c.NotAsked))
	}
	return strings.Join(lines, "\n")
}

// HealthChecks counts the CHECKs of plugins.
type HealthChecks struct {
	Asked      int // plugins
	Failed     int // that said that something is wrong, and may be right
	Unanswered int // that gave no answer, or one that healthy containers get too
	// NotAsked are the attachments whose plugins were not asked, because another call had
	// the container locked, or the budget was used up.
	NotAsked int
	Took     time.Duration
}

// HealthState is the verdict on a container.
type HealthState string

const (
	// StateHealthy: nothing is missing or different, as far as anybody can tell; see
	// Health.Uncompared.
	StateHealthy HealthState = "healthy"
	// StateBroken: something is missing or different; see Health.Differences.
	StateBroken HealthState = "broken"
	// StateUnknown: it is not known whether the container is healthy; see Health.Reason.
	StateUnknown HealthState = "unknown"
	// StateGone: its network namespace is gone, or was of an earlier boot of the machine.
	// Remove or Recover removes it.
	StateGone HealthState = "gone"
	// StateNotAttached: no attachment of it is on record.
	StateNotAttached HealthState = "not attached"
	// StateElsewhere: it is attached in another network namespace than the one in
	// HealthOptions.NetNS, or that path leads to none.
	StateElsewhere HealthState = "elsewhere"
)

// Health is the verdict on one container.
type Health struct {
	ContainerID string // or, for a record that names none, "record" and its file's name
	State       HealthState

	// Differences are the parts that are missing or different. Only a broken container
	// has any.
	Differences []Difference

	// Reason is why the state is unknown, or the container gone. A broken container has
	// one too if a part of it could not be examined, and a healthy one if the CHECK of a
	// plugin has failed over a difference that does not matter and that nobody restores,
	// such as another hardware address of the bridge. If the CHECK of a plugin fails for
	// healthy containers too, and the comparison finds nothing wrong, the state is unknown:
	// the bridge plugin's does without an IPAM plugin, and others of the reference plugins
	// do in some configurations. These errors are among the reasons:
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
	Reason error

	// Uncompared are the types of plugins whose part nobody has compared, and whose CHECK
	// was not asked because HealthOptions or the network's disableCheck forbid it.
	Uncompared []string
}

// Err returns nil if the container is healthy, and otherwise an error with the
// differences and the reason. errors.Is and errors.As find what Reason and the
// differences wrap.
func (h Health) Err() error {
	var errs []error
	for _, d := range h.Differences {
		errs = append(errs, d.Err)
	}
	return engine.Doubt(h.ContainerID, health.State(h.State), errs, h.Reason)
}

// String has a line for the container, and one for each difference.
func (h Health) String() string {
	line := fmt.Sprintf("%s: %s", h.ContainerID, h.State)
	if h.Reason != nil {
		line += ": " + h.Reason.Error()
	}
	if len(h.Uncompared) > 0 {
		line += "; not compared: " + strings.Join(h.Uncompared, ", ")
	}
	for _, d := range h.Differences {
		line += "\n  " + d.String()
	}
	return line
}

// MarshalJSON encodes the verdict as an object with the names of its fields. Reason
// becomes its text.
func (h Health) MarshalJSON() ([]byte, error) {
	type plain Health
	return json.Marshal(struct {
		plain
		Reason string
	}{plain(h), textOf(h.Reason)})
}

func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Difference is a part of an attachment that is missing, or is not as its ADD made it.
type Difference struct {
	Network string
	IfName  string
	Plugin  string // the type of the plugin whose part it is
	// Kind is the kind of the object: interface, address, route, queue, bridge, bridge port,
	// sysctl, reservation (of an address, by an IPAM plugin), rule (of a packet filter), port
	// (of the host, forwarded to the container), zone (of firewalld), or check: the CHECK of a
	// plugin has failed, and only that plugin knows more than Err.
	Kind   string
	Inside bool   // it is in the container's namespace; else it is on the host
	Object string // its name: "vethab12", "10.1.0.1/24 on cni0", "tcp 8080"
	Wanted string // its recorded value
	Found  string // its value now; empty if it is missing

	// Repairable reports whether Repair can put it right. Inside a container Repair
	// changes nothing unless it is asked to. Otherwise Why says why not.
	Repairable bool
	Why        string

	Err error // the error of CHECK for it
}

// String describes the difference in a line.
func (d Difference) String() string { return engine.Difference(d).String() }

// MarshalJSON encodes the difference as an object with the names of its fields. Err
// becomes its text.
func (d Difference) MarshalJSON() ([]byte, error) {
	type plain Difference
	return json.Marshal(struct {
		plain
		Err string
	}{plain(d), textOf(d.Err)})
}

func differences(found []engine.Difference) (all []Difference) {
	for _, d := range found {
		all = append(all, Difference(d))
	}
	return all
}

// Replace removes the attachments of a container, as Remove does, and attaches it in the
// network namespace at path, as Setup does without WithNewNetNS. It is for a container
// that Repair cannot mend, or whose task lives in another namespace than the recorded one:
// whatever is in that loses its network.
//
// The report is that of a Health whose options have named the container; another one is
// ErrInvalidArgument. If another call has changed the container since, Replace changes
// nothing, and returns ErrBusy. Nor is anything removed if the
// Setup could not succeed: its options are invalid, the path leads to no network
// namespace, too few networks are loaded, an interface of the name is in the namespace and
// not on the container's record, or another owner has attached the container, or another
// program (see Remove).
//
// A replacement asks for the addresses that the container had: by the capability "ips" if
// the network declares it, otherwise by args.cni if its IPAM plugin is host-local, unless
// the options ask for some. If the ADD fails with them, it is repeated without. After a
// Setup that failed the container is not attached.
func (r *Runtime) Replace(ctx context.Context, report *HealthReport, id, path string, opts ...NamespaceOpts) (result *Result, err error) {
	l := r.current.Load()
	ctx, span := runner.CallSpan(ctx, "cni.Replace", id, path)
	defer func() { endCall(span, err) }()
	if err := l.eng.RefuseInside(ctx); err != nil {
		return nil, fmt.Errorf("replace the attachments of container %q: %w", id, err)
	}
	result, err = r.replace(ctx, l, report, id, path, opts)
	if err != nil {
		return nil, fmt.Errorf("replace the attachments of container %q: %w", id, err)
	}
	return result, nil
}

func (r *Runtime) replace(ctx context.Context, l *loaded, report *HealthReport, id, path string, opts []NamespaceOpts) (*Result, error) {
	ns, err := newNamespace(id, path, opts...)
	if err != nil {
		return nil, err
	}
	if err := r.usable(l, ns); err != nil {
		return nil, err
	}
	if report == nil {
		report = &HealthReport{}
	}
	seen, named := report.seen[id]
	if !named {
		return nil, fmt.Errorf("the report is of no Health whose options name the container: %w", ErrInvalidArgument)
	}
	ns.makes = false // its task lives in the one that it has
	c, err := l.call(ns, "ADD")
	if err != nil {
		return nil, err
	}
	made, err := l.eng.Replace(ctx, c, seen)
	if err != nil {
		return nil, err
	}
	return l.result(made)
}

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
	report, err := r.current.Load().eng.Repair(ctx, record.ID(id), o.inner(), true)
	if err != nil {
		err = fmt.Errorf("repair container %q: %w", id, err)
	}
	return asRepairReport(report), err
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
	return engine.Join(append(errs, r.Unknown...)...)
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

func (o RepairOptions) inner() engine.RepairOptions {
	in := engine.RepairOptions{Inside: o.Inside, Unheld: o.Unheld}
	if o.Want != nil {
		in.Want = func(id string, d engine.Difference) bool { return o.Want(id, Difference(d)) }
	}
	return in
}

func asRepairReport(r *engine.RepairReport) *RepairReport {
	if r == nil {
		return nil
	}
	report := &RepairReport{ContainerID: r.ContainerID, Repaired: differences(r.Repaired), Unknown: r.Unknown}
	for _, left := range r.Remaining {
		report.Remaining = append(report.Remaining, Remaining{Difference(left.Difference), left.Reason})
	}
	return report
}

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
	done := e.RepairAll(ctx, all, o.inner())
	for _, id := range all {
		reports = append(reports, asRepairReport(done[id]))
	}
	return reports, nil
}

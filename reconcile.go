package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/embedcni/cni/internal/health"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/nsfind"
	"github.com/embedcni/cni/internal/reconcile"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/netns"
)

// Expected is a container that a scheduler believes in.
type Expected struct {
	ContainerID string
	NetNS       string // the path of the network namespace in which its task lives
	// Options are those of its Setup. Only a replacement uses them, without WithNewNetNS.
	Options []NamespaceOpts
}

// Decision is what Reconcile does about a container that is not healthy.
type Decision string

const (
	// DecideReport changes nothing.
	DecideReport Decision = "report"
	// DecideRepair makes missing parts again, as Repair does.
	DecideRepair Decision = "repair"
	// DecideReplace removes what is on record, as Remove does, and attaches the container
	// in the namespace that the scheduler has named, as Setup does. Nothing is removed if
	// the Setup could not succeed: its options are invalid, the path leads to no network
	// namespace, too few networks are loaded, an interface of the name is in the
	// namespace and not on the container's record, or another owner has attached the
	// container, or another program (see Remove). Whatever is in the recorded namespace
	// loses its network.
	DecideReplace Decision = "replace"
)

// ReconcileOptions configures Reconcile.
type ReconcileOptions struct {
	// Decide decides about a container that is not healthy. It is called for one after
	// the other, before anything is changed. Without it, broken containers are repaired
	// unless an attachment of theirs is held, see Runtime.Hold, and others reported.
	Decide func(Health) Decision
	// Repair is for containers that are repaired.
	Repair RepairOptions

	// As in HealthOptions.
	WithoutCheck bool
	CheckBudget  time.Duration
}

// Reconcile is for the start of a scheduler's agent that remembers its containers:
// it compares them with the records and the kernel, and repairs or replaces those that
// are not healthy, as the caller decides.
//
// The verdict on each is that of Health. In addition the namespace must be the one in
// which the container was attached, by the device and inode of the namespace and the
// machine's boot rather than by the path. A container that was attached again in a new
// namespace, while its task lives in the old one, is StateElsewhere; so is one whose path
// leads to no network namespace.
//
// A replacement asks for the addresses that the container had: by the capability "ips" if
// the network declares it, otherwise by args.cni if its IPAM plugin is host-local, unless
// the options ask for some. If the ADD fails with them, it is repeated without. See
// Reconciled.Lost.
//
// Containers on record that the call has not named are listed in Unexpected, and stay as
// they are: Remove removes them, and Recover those that are dead. Call Reconcile before
// Recover if broken containers are to be replaced rather than repaired.
//
// Several containers are repaired or replaced at once, each under its lock. One that
// another call has changed since its verdict is not replaced; that is ErrBusy. The error is
// the reason why Reconcile could not look, or ErrInvalidArgument for an ID that is invalid
// or named twice; then nothing was changed. If ctx ends, Setups and repairs end, and the
// report has the outcome for each container.
func (r *Runtime) Reconcile(ctx context.Context, expected []Expected, o ReconcileOptions) (*ReconcileReport, error) {
	c := &reconciliation{snapshot: r.current.Load(), runtime: r, o: o}
	report, err := c.run(ctx, expected)
	if err != nil {
		return nil, fmt.Errorf("reconcile: %w", err)
	}
	return report, nil
}

// ReconcileReport is the outcome of Reconcile.
type ReconcileReport struct {
	Containers []Reconciled // in the order of the call
	// Unexpected are the containers on record with attachments of this owner, and those
	// whose record names no owner, that the call has not named, in the order of their IDs.
	Unexpected []string
}

// Reconciled is the outcome for one container.
type Reconciled struct {
	Health   Health   // the verdict before anything was changed
	Decision Decision // empty if the container is healthy

	Repair *RepairReport // of a container that was repaired
	Result *Result       // of one that was replaced
	// Lost are the addresses that the container had before it was replaced and does not
	// have now.
	Lost []netip.Addr

	// Err is nil if the container is healthy, or was repaired or replaced. Otherwise it is
	// why not: the verdict, if nothing was done; what Repair has left; or the error of the
	// removal, a *LeftoverError, or of the Setup. After a Setup that failed the container
	// is not attached; a namespace that an earlier Setup made stays on record, see
	// WithNewNetNS.
	Err error
}

// Of returns the outcome for a container, and reports whether there is one.
func (r *ReconcileReport) Of(id string) (Reconciled, bool) {
	i := slices.IndexFunc(r.Containers, func(c Reconciled) bool { return c.Health.ContainerID == id })
	if i < 0 {
		return Reconciled{}, false
	}
	return r.Containers[i], true
}

// Err joins the errors of all containers. Unexpected ones are no error.
func (r *ReconcileReport) Err() error {
	var errs []error
	for _, c := range r.Containers {
		if c.Err != nil {
			errs = append(errs, fmt.Errorf("container %s: %w", c.Health.ContainerID, c.Err))
		}
	}
	return join(errs...)
}

// String has the verdict and the outcome for each container.
func (r *ReconcileReport) String() string {
	var lines []string
	for _, c := range r.Containers {
		lines = append(lines, c.String())
	}
	for _, id := range r.Unexpected {
		lines = append(lines, id+": on record, and not expected")
	}
	return strings.Join(lines, "\n")
}

// String has the verdict, and a line about the outcome unless the container is healthy.
func (c Reconciled) String() string {
	id := c.Health.ContainerID
	s := c.Health.String()
	switch {
	case c.Decision == "" || c.Decision == DecideReport:
	case c.Err != nil:
		s += fmt.Sprintf("\n%s: %s: %v", id, c.Decision, c.Err)
	default:
		s += fmt.Sprintf("\n%s: %s: done", id, c.Decision)
	}
	if len(c.Lost) > 0 {
		s += fmt.Sprintf("\n%s: lost the addresses %v", id, c.Lost)
	}
	return s
}

// MarshalJSON encodes the outcome as an object with the names of its fields. Err becomes
// its text.
func (c Reconciled) MarshalJSON() ([]byte, error) {
	type plain Reconciled
	return json.Marshal(struct {
		plain
		Err string
	}{plain(c), textOf(c.Err)})
}

// reconciliation is a Reconcile in progress.
type reconciliation struct {
	*snapshot
	runtime *Runtime
	o       ReconcileOptions
	host    *hostns.NetNS
	seen    map[string]*record.Record // by container, at its verdict
}

func (c *reconciliation) run(ctx context.Context, expected []Expected) (_ *ReconcileReport, err error) {
	if err := c.refuseInside(ctx); err != nil {
		return nil, err
	}
	named := make(map[record.ID]bool, len(expected))
	for _, e := range expected {
		if err := validateID(record.ID(e.ContainerID)); err != nil {
			return nil, err
		}
		if named[record.ID(e.ContainerID)] {
			return nil, fmt.Errorf("container %q is named twice: %w", e.ContainerID, ErrInvalidArgument)
		}
		named[record.ID(e.ContainerID)] = true
	}
	if c.host, err = c.Hosts.Open(c.hostNetNS); err != nil {
		return nil, err
	}
	defer func() { err = join(err, c.host.Close()) }()
	verdicts, err := c.verdicts(ctx, expected)
	if err != nil {
		return nil, err
	}
	mine, err := c.owned(true, nil)
	if err != nil {
		return nil, err
	}
	report := &ReconcileReport{Unexpected: reconcile.Unexpected(mine, named, nameOf)}
	for _, e := range expected {
		one := Reconciled{Health: verdicts[e.ContainerID]}
		if one.Health.State != StateHealthy {
			one.Decision = c.decide(one.Health)
		}
		report.Containers = append(report.Containers, one)
	}
	c.act(ctx, expected, report.Containers)
	return report, nil
}

func (c *reconciliation) decide(h Health) Decision {
	if c.o.Decide != nil {
		return c.o.Decide(h)
	}
	if h.State == StateBroken {
		return DecideRepair
	}
	return DecideReport
}

// verdicts returns the verdict on each container.
func (c *reconciliation) verdicts(ctx context.Context, expected []Expected) (map[string]Health, error) {
	if len(expected) == 0 {
		return nil, nil
	}
	ids, paths := make([]string, len(expected)), make(map[string]string, len(expected))
	for i, e := range expected {
		ids[i], paths[e.ContainerID] = e.ContainerID, e.NetNS
	}
	found, report, err := c.toExamine(ids)
	if err != nil {
		return nil, err
	}
	verdicts := make(map[string]Health, len(expected))
	for _, h := range report.Containers {
		verdicts[h.ContainerID] = h
	}
	var here []*health.Container
	c.seen = make(map[string]*record.Record, len(found))
	for _, e := range c.look(ctx, c.host, found, false) {
		if e.State != health.NotAttached {
			c.seen[string(e.Found.Record.ContainerID)] = e.Found.Record
		}
		if h, ok := c.elsewhere(e, paths[string(e.Found.Record.ContainerID)]); ok {
			verdicts[h.ContainerID] = h
			continue
		}
		here = append(here, e)
	}
	if !c.o.WithoutCheck {
		c.askAll(ctx, c.host, here, c.o.CheckBudget)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	for _, e := range here {
		h := verdictOn(e)
		verdicts[h.ContainerID] = h
	}
	return verdicts, nil
}

// elsewhere returns the verdict on a container that is not attached in the namespace at
// the path. A container whose record does not say where it is attached, or which is dead,
// has the verdict of the look.
func (c *reconciliation) elsewhere(e *health.Container, path string) (Health, bool) {
	if e.Found.Err != nil || e.State == health.Gone || e.State == health.NotAttached {
		return Health{}, false
	}
	state, err := c.isAt(e.Found.Record.NetNS, path)
	return Health{ContainerID: nameOf(e.Found), State: state, Reason: err}, err != nil
}

// isAt returns nil if the path leads to the recorded namespace. Otherwise it returns why
// not, and what that makes of a container.
func (c *reconciliation) isAt(recorded record.NetNS, path string) (HealthState, error) {
	h, _, err := c.host.OpenContainer(path, "CHECK")
	switch {
	case err != nil && !nsfind.LeadsNowhere(err) && errors.As(err, new(syscall.Errno)):
		return StateUnknown, err
	case err != nil:
		return StateElsewhere, fmt.Errorf("it is attached in %s: %w", recorded.Path, err)
	case h == nil:
		return "", nil // off Linux the path means nothing here
	}
	now := h.ID()
	if err := h.Close(); err != nil {
		c.logger.Error("close network namespace", "error", err)
	}
	switch recorded.ID() {
	case now:
		return "", nil
	case netns.ID{}:
		return StateUnknown, errors.New("its record does not say in which network namespace it is attached")
	}
	return StateElsewhere, fmt.Errorf("it is attached in the network namespace %v, given as %s, and %s leads to %v: %w",
		recorded.ID(), recorded.Path, path, now, ErrInvalidNetNS)
}

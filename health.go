package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/health"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/netns"
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
	report, err := s.health(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("health: %w", err)
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
	if h.State == StateHealthy {
		return nil
	}
	var errs []error
	for _, d := range h.Differences {
		errs = append(errs, d.Err)
	}
	err := join(append(errs, h.Reason)...)
	if err == nil && h.State == StateNotAttached {
		return fmt.Errorf("container %s is %w", h.ContainerID, ErrNotAttached)
	}
	return err
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

func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// see keeps the record of a container, unless the look was at all: a report would keep
// thousands of records in memory.
func (r *HealthReport) see(e *health.Container) {
	if r.seen == nil {
		return
	}
	r.seen[nameOf(e.Found)] = nil
	if e.State != health.NotAttached {
		r.seen[nameOf(e.Found)] = e.Found.Record
	}
}

// verdictOn returns the verdict on a container that was looked at.
func verdictOn(e *health.Container) Health {
	h := Health{ContainerID: nameOf(e.Found), State: HealthState(e.State), Reason: e.Reason}
	var noted error
	for _, c := range e.Parts {
		for _, d := range c.Differences {
			h.Differences = append(h.Differences, differenceOf(c.Network, c.IfName, d))
		}
		if c.Asked.Failed != nil {
			h.Differences = append(h.Differences, checkFailed(c))
		}
		h.Reason = join(h.Reason, c.Err, c.Asked.Unknown, c.Asked.Blind)
		noted = join(noted, c.Asked.Noted)
		h.Uncompared = append(h.Uncompared, c.Unjudged()...)
	}
	slices.Sort(h.Uncompared)
	h.Uncompared = slices.Compact(h.Uncompared)
	switch {
	case h.State != "":
	case len(h.Differences) > 0:
		h.State = StateBroken
	case h.Reason != nil:
		h.State = StateUnknown
	default:
		h.State, h.Reason = StateHealthy, noted
	}
	return h
}

// health is Health without the error's prefix.
func (s *snapshot) health(ctx context.Context, o HealthOptions) (_ *HealthReport, err error) {
	if err := s.refuseInside(ctx); err != nil {
		return nil, err
	}
	host, err := s.store.Hosts.Open(s.opts.hostNetNS)
	if err != nil {
		return nil, err
	}
	defer func() { err = join(err, host.Close()) }()
	found, report, err := s.toExamine(o.Containers)
	if err != nil {
		return nil, err
	}
	begun := time.Now()
	look := s.looking(ctx, host, len(o.Containers) == 0)
	look.Brief = o.Once
	var all []*health.Container
	for _, e := range look.All(ctx, found) {
		if h, ok := s.elsewhere(host, e, o.NetNS); ok {
			report.Containers = append(report.Containers, h)
			report.see(e)
		} else {
			all = append(all, e)
		}
	}
	report.Compared = time.Since(begun)
	if !o.WithoutCheck {
		report.Checks = s.askAll(ctx, host, all, o.CheckBudget)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	for _, e := range all {
		if e.State != health.NotAttached || len(o.Containers) > 0 {
			report.Containers = append(report.Containers, verdictOn(e))
		}
		report.see(e)
	}
	slices.SortFunc(report.Containers, func(a, b Health) int { return strings.Compare(a.ContainerID, b.ContainerID) })
	return report, nil
}

// toExamine returns the records of the containers: of this owner's, or with ids of
// those. The report has the verdict on those that are not on record.
func (s *snapshot) toExamine(ids []string) (found []record.Found, report *HealthReport, err error) {
	report = &HealthReport{}
	if len(ids) == 0 {
		mine, err := s.owned(true, nil)
		return slices.DeleteFunc(mine, func(f record.Found) bool { return f.Record.Warm }), report, err
	}
	report.seen = make(map[string]*record.Record, len(ids))
	ids = slices.Clone(ids)
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		if err := validateID(record.ID(id)); err != nil {
			return nil, nil, err
		}
		f := s.store.Records.Find(record.ID(id))
		if f.Record == nil {
			h, err := s.offRecord(record.ID(id))
			if err != nil {
				return nil, nil, err
			}
			report.Containers = append(report.Containers, h)
			report.seen[id] = nil
			continue
		}
		f.Record.ContainerID = record.ID(id) // also if it is illegible
		found = append(found, f)
	}
	return found, report, nil
}

// offRecord returns the verdict on a container that is not on record.
func (s *snapshot) offRecord(id record.ID) (Health, error) {
	cached, err := chain.AllCached(s.opts.stateDir, string(id))
	if err != nil {
		return Health{}, err
	}
	if len(cached) > 0 {
		return Health{ContainerID: string(id), State: StateUnknown, Reason: errOnlyCached}, nil
	}
	return Health{ContainerID: string(id), State: StateNotAttached}, nil
}

// errOnlyCached: nothing says in which namespace the plugins ran, nor which.
var errOnlyCached = errors.New("it is in libcni's cache and not on record, since another program attached it; Check asks its plugins")

// elsewhere returns the verdict on a container that is not attached in the namespace of
// which the caller knows the path. A container whose record does not say where it is attached, or which is dead,
// has the verdict of the look.
func (s *snapshot) elsewhere(host *hostns.NetNS, e *health.Container, paths map[string]string) (Health, bool) {
	path, ok := paths[string(e.Found.Record.ContainerID)]
	if !ok || e.Found.Err != nil || e.State == health.Gone || e.State == health.NotAttached {
		return Health{}, false
	}
	state, err := s.isAt(host, e.Found.Record.NetNS, path)
	return Health{ContainerID: nameOf(e.Found), State: state, Reason: err}, err != nil
}

// isAt returns nil if the path leads to the recorded namespace. Otherwise it returns why
// not, and what that makes of a container.
func (s *snapshot) isAt(host *hostns.NetNS, recorded record.NetNS, path string) (HealthState, error) {
	h, _, err := host.OpenContainer(path, "CHECK")
	switch {
	case err != nil && !hostns.LeadsNowhere(err) && errors.As(err, new(syscall.Errno)):
		return StateUnknown, err
	case err != nil:
		return StateElsewhere, fmt.Errorf("it is attached in %s: %w", recorded.Path, err)
	case h == nil:
		return "", nil // off Linux the path means nothing here
	}
	now := h.ID()
	if err := h.Close(); err != nil {
		s.opts.logger.Error("close network namespace", "error", err)
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

package engine

import (
	"context"
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

// The other states of a verdict.
const (
	stateHealthy   health.State = "healthy"
	stateBroken    health.State = "broken"
	stateElsewhere health.State = "elsewhere"
)

// healthOptions say what to look at; see cni.HealthOptions.
type HealthOptions struct {
	Containers   []string
	NetNS        map[string]string
	Once         bool
	WithoutCheck bool
	CheckBudget  time.Duration
}

// healthReport has a verdict on each container.
type healthReport struct {
	Containers []verdict
	Compared   time.Duration
	Checks     healthChecks
	Seen       map[string]*record.Record // of the containers that the options name
}

// healthChecks count what became of CHECKs.
type healthChecks struct {
	Asked, Failed, Unanswered, NotAsked int
	Took                                time.Duration
}

// verdict is what a look says of one container.
type verdict struct {
	ContainerID string
	State       health.State
	Differences []Difference
	Reason      error
	Uncompared  []string
}

// doubt returns an error with everything that speaks against a container.
func (v verdict) doubt() error {
	var errs []error
	for _, d := range v.Differences {
		errs = append(errs, d.Err)
	}
	return Doubt(v.ContainerID, v.State, errs, v.Reason)
}

// doubt returns nil if the container is healthy, and otherwise an error with the
// differences and the reason.
func Doubt(id string, state health.State, found []error, reason error) error {
	if state == stateHealthy {
		return nil
	}
	err := Join(append(found, reason)...)
	if err == nil && state == health.NotAttached {
		return fmt.Errorf("container %s is %w", id, ErrNotAttached)
	}
	return err
}

// see keeps the record of a container, unless the look was at all: a report would keep
// thousands of records in memory.
func (r *healthReport) see(e *health.Container) {
	if r.Seen == nil {
		return
	}
	r.Seen[nameOf(e.Found)] = nil
	if e.State != health.NotAttached {
		r.Seen[nameOf(e.Found)] = e.Found.Record
	}
}

// verdictOn returns the verdict on a container that was looked at.
func verdictOn(e *health.Container) verdict {
	v := verdict{ContainerID: nameOf(e.Found), State: e.State, Reason: e.Reason}
	var noted error
	for _, c := range e.Parts {
		for _, d := range c.Differences {
			v.Differences = append(v.Differences, differenceOf(c.Network, c.IfName, d))
		}
		if c.Asked.Failed != nil {
			v.Differences = append(v.Differences, checkFailed(c))
		}
		v.Reason = Join(v.Reason, c.Err, c.Asked.Unknown, c.Asked.Blind)
		noted = Join(noted, c.Asked.Noted)
		v.Uncompared = append(v.Uncompared, c.Unjudged()...)
	}
	slices.Sort(v.Uncompared)
	v.Uncompared = slices.Compact(v.Uncompared)
	switch {
	case v.State != health.Compared:
	case len(v.Differences) > 0:
		v.State = stateBroken
	case v.Reason != nil:
		v.State = health.Unknown
	default:
		v.State, v.Reason = stateHealthy, noted
	}
	return v
}

// health looks at containers, and returns the verdict on each.
func (eng *Engine) Health(ctx context.Context, o HealthOptions) (_ *healthReport, err error) {
	if err := eng.RefuseInside(ctx); err != nil {
		return nil, err
	}
	host, err := eng.openHost()
	if err != nil {
		return nil, err
	}
	defer func() { err = Join(err, host.Close()) }()
	found, report, err := eng.toExamine(o.Containers)
	if err != nil {
		return nil, err
	}
	begun := time.Now()
	look := eng.looking(ctx, host, len(o.Containers) == 0)
	look.Brief = o.Once
	var all []*health.Container
	for _, e := range look.All(ctx, found) {
		if h, ok := eng.elsewhere(host, e, o.NetNS); ok {
			report.Containers = append(report.Containers, h)
			report.see(e)
		} else {
			all = append(all, e)
		}
	}
	report.Compared = time.Since(begun)
	if !o.WithoutCheck {
		report.Checks = eng.askAll(ctx, host, all, o.CheckBudget)
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
	slices.SortFunc(report.Containers, func(a, b verdict) int { return strings.Compare(a.ContainerID, b.ContainerID) })
	return report, nil
}

// toExamine returns the records of the containers: of this owner's, or with ids of
// those. The report has the verdict on those that are not on record.
func (eng *Engine) toExamine(ids []string) (found []record.Found, report *healthReport, err error) {
	report = &healthReport{}
	if len(ids) == 0 {
		mine, err := eng.owned(true, nil)
		return slices.DeleteFunc(mine, func(f record.Found) bool { return f.Record.Warm }), report, err
	}
	report.Seen = make(map[string]*record.Record, len(ids))
	ids = slices.Clone(ids)
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		if err := ValidateID(record.ID(id)); err != nil {
			return nil, nil, err
		}
		f := eng.Store.Records.Find(record.ID(id))
		if f.Record == nil {
			h, err := eng.offRecord(record.ID(id))
			if err != nil {
				return nil, nil, err
			}
			report.Containers = append(report.Containers, h)
			report.Seen[id] = nil
			continue
		}
		f.Record.ContainerID = record.ID(id) // also if it is illegible
		found = append(found, f)
	}
	return found, report, nil
}

// offRecord returns the verdict on a container that is not on record.
func (eng *Engine) offRecord(id record.ID) (verdict, error) {
	cached, err := chain.AllCached(eng.opts.StateDir, string(id))
	if err != nil {
		return verdict{}, err
	}
	if len(cached) > 0 {
		return verdict{ContainerID: string(id), State: health.Unknown, Reason: errOnlyCached}, nil
	}
	return verdict{ContainerID: string(id), State: health.NotAttached}, nil
}

// errOnlyCached: nothing says in which namespace the plugins ran, nor which.
var errOnlyCached = errors.New("it is in libcni's cache and not on record, since another program attached it; Check asks its plugins")

// elsewhere returns the verdict on a container that is not attached in the namespace of
// which the caller knows the path. A container whose record does not say where it is attached, or which is dead,
// has the verdict of the look.
func (eng *Engine) elsewhere(host *hostns.NetNS, e *health.Container, paths map[string]string) (verdict, bool) {
	path, ok := paths[string(e.Found.Record.ContainerID)]
	if !ok || e.Found.Err != nil || e.State == health.Gone || e.State == health.NotAttached {
		return verdict{}, false
	}
	state, err := eng.isAt(host, e.Found.Record.NetNS, path)
	return verdict{ContainerID: nameOf(e.Found), State: state, Reason: err}, err != nil
}

// isAt returns nil if the path leads to the recorded namespace. Otherwise it returns why
// not, and what that makes of a container.
func (eng *Engine) isAt(host *hostns.NetNS, recorded record.NetNS, path string) (health.State, error) {
	h, _, err := host.OpenContainer(path, "CHECK")
	switch {
	case err != nil && !hostns.LeadsNowhere(err) && errors.As(err, new(syscall.Errno)):
		return health.Unknown, err
	case err != nil:
		return stateElsewhere, fmt.Errorf("it is attached in %s: %w", recorded.Path, err)
	case h == nil:
		return "", nil // off Linux the path means nothing here
	}
	now := h.ID()
	if err := h.Close(); err != nil {
		eng.opts.Logger.Error("close network namespace", "error", err)
	}
	switch recorded.ID() {
	case now:
		return "", nil
	case netns.ID{}:
		return health.Unknown, errors.New("its record does not say in which network namespace it is attached")
	}
	return stateElsewhere, fmt.Errorf("it is attached in the network namespace %v, given as %s, and %s leads to %v: %w",
		recorded.ID(), recorded.Path, path, now, ErrInvalidNetNS)
}

package reconcile

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/engine/engine"
	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/thread"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/netns"
)

// Expected is a container that a scheduler believes in.
type Expected struct {
	ContainerID string
	NetNS       string // the path of the network namespace in which its task lives
	// Options are those of its Setup. Only a replacement uses them, without WithNewNetNS.
	// Where a network takes requests for addresses, they can ask for those that the
	// container had (cni.WithCapability, cni.WithConfigArgs).
	Options []cni.NamespaceOpts
}

// Decision is what Run does about a container that is not healthy.
type Decision string

const (
	// Report changes nothing.
	Report Decision = "report"
	// Repair adds missing parts, as cni.Runtime.Repair does.
	Repair Decision = "repair"
	// Replace removes what is on record, as Remove does, and attaches the container in the
	// namespace that the scheduler has named, as Setup does; whatever is in the recorded one
	// loses its network. Nothing is removed if the Setup could not succeed: its options are
	// invalid, the path leads to no network namespace, too few networks are loaded, an
	// interface of the name is in the namespace and not on the container's record, or
	// another owner or another program has attached the container. After a Setup that failed
	// the container is not attached.
	Replace Decision = "replace"
)

// Options configures Run.
type Options struct {
	// Decide decides about a container that is not healthy. It is called for one after
	// the other, before anything is changed. Without it, broken containers are repaired
	// unless an attachment of theirs is held, see package guard, and others reported.
	Decide func(cni.Health) Decision
	// Repair is for containers that are repaired.
	Repair cni.RepairOptions

	// As in cni.HealthOptions.
	WithoutCheck bool
	CheckBudget  time.Duration
}

// Run compares the containers with the records and the kernel, and does what is decided
// about those that are not healthy.
//
// Several containers are repaired or replaced at once, each under its lock. One that
// another call has changed since its verdict is not replaced; that is cni.ErrBusy, and another
// Run decides anew. The change may be the Runtime's own, which removes abandoned containers in
// the background; see cni.WithoutReaping.
//
// The error is the reason why Run could not look, or cni.ErrInvalidArgument for an ID that is
// invalid or named twice; then nothing was changed. If ctx ends, Setups and repairs end,
// and the result has the outcome for each container.
func Run(ctx context.Context, rt *cni.Runtime, expected []Expected, o Options) (*Result, error) {
	r := &run{rt: rt, options: o}
	result, err := r.run(ctx, expected)
	if err != nil {
		return nil, fmt.Errorf("reconcile: %w", err)
	}
	return result, nil
}

// run is a Run in progress.
type run struct {
	rt      *cni.Runtime
	options Options
	paths   map[string]string         // of the namespaces, by container
	seen    map[string]*record.Record // their records before the verdicts
}

func (r *run) run(ctx context.Context, expected []Expected) (_ *Result, err error) {
	result := &Result{}
	r.paths = make(map[string]string, len(expected))
	r.seen = make(map[string]*record.Record, len(expected))
	records := record.Open(r.rt.GetConfig().RecordDir)
	var ids []string
	for _, e := range expected {
		if _, twice := r.paths[e.ContainerID]; twice {
			return nil, fmt.Errorf("container %q is named twice: %w", e.ContainerID, cni.ErrInvalidArgument)
		}
		r.paths[e.ContainerID] = e.NetNS
		r.seen[e.ContainerID] = records.Find(record.ID(e.ContainerID)).Record
		ids = append(ids, e.ContainerID)
	}
	if len(ids) > 0 {
		all, err := r.rt.Health(ctx, cni.HealthOptions{
			Containers: ids, NetNS: r.paths, WithoutCheck: r.options.WithoutCheck, CheckBudget: r.options.CheckBudget,
		})
		if err != nil {
			return nil, err
		}
		for _, id := range ids {
			i := slices.IndexFunc(all, func(h cni.Health) bool { return h.ContainerID == id })
			result.Containers = append(result.Containers, Container{Health: all[i]})
		}
	}
	if result.Unexpected, err = r.unexpected(); err != nil {
		return nil, err
	}
	return result, r.act(ctx, expected, result.Containers)
}

// unexpected returns the containers on record that the caller has not named.
func (r *run) unexpected() (ids []string, err error) {
	all, err := r.rt.Attachments()
	if err != nil {
		return nil, err
	}
	owner := r.rt.GetConfig().Owner
	for _, a := range all {
		if _, named := r.paths[a.ContainerID]; !named && a.ContainerID != "" && (a.Owner == owner || a.Owner == "") {
			ids = append(ids, a.ContainerID)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// decide returns the decision about a container, empty if it is healthy.
func (r *run) decide(h cni.Health) Decision {
	switch {
	case h.State == cni.StateHealthy:
		return ""
	case r.options.Decide != nil:
		return r.options.Decide(h)
	case h.State == cni.StateBroken:
		return Repair
	}
	return Report
}

// atOnce is the number of containers that are repaired or replaced at once.
const atOnce = 8

// act decides, and then does it, for several containers at once, all from the namespace of
// the caller's thread.
func (r *run) act(ctx context.Context, expected []Expected, all []Container) (err error) {
	var changes []int
	for i := range all {
		one := &all[i]
		one.Decision = r.decide(one.Health)
		switch one.Decision {
		case "":
		case Report:
			one.Err = one.Health.Err()
		case Repair, Replace:
			changes = append(changes, i)
		default:
			one.Err = fmt.Errorf("decision %q: %w", one.Decision, cni.ErrInvalidArgument)
		}
	}
	if len(changes) == 0 {
		return nil
	}
	enter := func(fn func() error) error { return fn() } // other systems have no namespaces
	here, err := netns.Current()
	switch {
	case err == nil:
		defer func() { err = joined.Errors(err, here.Close()) }()
		enter = here.Do
	case !errors.Is(err, netns.ErrNotSupported):
		return err
	}
	thread.Each(len(changes), atOnce, func(i int) {
		one := &all[changes[i]]
		err := enter(func() error {
			return thread.Try(func() error {
				r.one(ctx, expected[changes[i]], one)
				return nil
			})
		})
		if err != nil {
			one.Err = joined.Errors(one.Err, err)
		}
	})
	return nil
}

func (r *run) one(ctx context.Context, e Expected, one *Container) {
	switch {
	case ctx.Err() != nil:
		one.Err = context.Cause(ctx)
	case one.Decision == Repair:
		r.repair(ctx, e, one)
	default:
		r.replace(ctx, e, one)
	}
}

// repair repairs a container that is where it should be.
func (r *run) repair(ctx context.Context, e Expected, one *Container) {
	if one.Health.State == cni.StateElsewhere {
		one.Err = fmt.Errorf("%w: only a replacement attaches it elsewhere: %w", cni.ErrNotRepairable, one.Health.Reason)
		return
	}
	o := r.options.Repair
	o.Unheld = o.Unheld || r.options.Decide == nil
	one.Repair, one.Err = r.rt.Repair(ctx, e.ContainerID, o)
	if one.named = one.Err != nil; one.named {
		return
	}
	if err := one.Repair.Err(); err != nil {
		one.Err = err
		if errors.Is(err, cni.ErrHeld) && len(one.Repair.Repaired) == 0 {
			one.Decision = Report
		}
	}
	// It may have been attached again meanwhile.
	now, err := r.rt.Health(ctx, cni.HealthOptions{Containers: []string{e.ContainerID}, NetNS: r.paths, WithoutCheck: true})
	if err == nil && now[0].State == cni.StateElsewhere {
		err = now[0].Err()
	}
	one.Err = joined.Errors(one.Err, err)
}

// replace replaces the attachments of a container.
func (r *run) replace(ctx context.Context, e Expected, one *Container) {
	before, err := r.addresses(e.ContainerID)
	if err == nil {
		one.Result, err = r.rt.Setup(engine.Replacing(ctx, r.seen[e.ContainerID]), e.ContainerID, e.NetNS, e.Options...)
	}
	after, aerr := r.addresses(e.ContainerID)
	for _, a := range before {
		if aerr == nil && !slices.Contains(after, a) {
			one.Lost = append(one.Lost, a)
		}
	}
	one.Err, one.named = joined.Errors(err, aerr), err != nil
}

// addresses returns those of a container on record, each once, but for loopback ones.
func (r *run) addresses(id string) (ips []netip.Addr, err error) {
	all, err := r.rt.Attachments(id)
	for _, a := range all {
		for _, address := range a.Addresses {
			if ip := address.IP(); ip.IsValid() && !ip.IsLoopback() && !slices.Contains(ips, ip) {
				ips = append(ips, ip)
			}
		}
	}
	return ips, err
}

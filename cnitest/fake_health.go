package cnitest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/embedcni/cni"
)

// Health is Runtime.Health of package cni.
func (f *Fake) Health(ctx context.Context, o cni.HealthOptions) (_ *cni.HealthReport, err error) {
	defer f.record(FakeCall{Method: "Health"}, &err)
	begun := time.Now()
	wanted := slices.Clone(o.Containers)
	if len(wanted) == 0 {
		for _, id := range f.h.ids() {
			if mine, _ := f.h.mine(id, f.me()); len(mine) > 0 && !mine[0].warm {
				wanted = append(wanted, id)
			}
		}
	}
	slices.Sort(wanted)
	report := &cni.HealthReport{}
	for _, id := range slices.Compact(wanted) {
		if err := validID(id); err != nil {
			return nil, fmt.Errorf("health: %w", err)
		}
		report.Containers = append(report.Containers, f.health(ctx, id, len(o.Containers) > 0, o.WithoutCheck, &report.Checks))
	}
	report.Compared = time.Since(begun)
	return report, nil
}

// errOnlyCached: Release has handed the container over.
var errOnlyCached = errors.New("it is in libcni's cache and not on record, since another program attached it; Check asks its plugins")

func (f *Fake) health(ctx context.Context, id string, anybodys, withoutCheck bool, checks *cni.HealthChecks) cni.Health {
	h := cni.Health{ContainerID: id, State: cni.StateHealthy}
	f.h.mu.Lock()
	onRecord, released := f.h.containers[id] != nil, f.h.released[id] != nil
	f.h.mu.Unlock()
	switch {
	case onRecord:
	case released:
		h.State, h.Reason = cni.StateUnknown, errOnlyCached
		return h
	default:
		h.State = cni.StateNotAttached
		return h
	}
	all, dead := f.h.recorded(id, nil)
	if dead {
		h.State, h.Reason = cni.StateGone, fmt.Errorf("its network namespace is gone: %w", cni.ErrInvalidNetNS)
		return h
	}
	var reasons []error
	for _, a := range all {
		if !anybodys && a.owner != f.me() {
			continue
		}
		f.h.mu.Lock()
		unfinished := isUnfinished(all, a)
		h.Differences = append(h.Differences, a.broken...)
		f.h.mu.Unlock()
		if unfinished {
			reasons = append(reasons, fmt.Errorf("network %q: its Setup was cut short, or its removal has begun", a.Network))
			continue
		}
		if withoutCheck {
			continue
		}
		d, reason := f.ask(ctx, id, a, checks)
		h.Differences, reasons = append(h.Differences, d...), append(reasons, reason)
	}
	h.Reason = join(reasons)
	switch {
	case len(h.Differences) > 0:
		h.State = cni.StateBroken
	case h.Reason != nil:
		h.State = cni.StateUnknown
	}
	return h
}

// ask asks the plugins of an attachment for CHECK. It returns the difference that they
// report, or why they give no answer.
func (f *Fake) ask(ctx context.Context, id string, a *fakeAttachment, checks *cni.HealthChecks) ([]cni.Difference, error) {
	err := f.h.fault(ctx, "CHECK", id, a)
	checks.Asked++
	if err == nil {
		return nil, nil
	}
	for _, unknown := range []error{
		context.DeadlineExceeded, context.Canceled, cni.ErrPluginKilled, cni.ErrNoAnswer, cni.ErrPluginNotReady,
		cni.ErrNoCheck, cni.ErrPluginNotFound, cni.ErrInsecureFile, cni.ErrBusy,
	} {
		if errors.Is(err, unknown) {
			checks.Unanswered++
			return nil, err
		}
	}
	checks.Failed++
	var e *cni.Error
	errors.As(err, &e)
	return []cni.Difference{{
		Network: a.Network, IfName: a.IfName, Plugin: e.Plugin, Kind: cni.KindCheck, Why: "only the plugin itself knows its part", Err: err,
	}}, nil
}

// Repair is Runtime.Repair of package cni.
func (f *Fake) Repair(ctx context.Context, id string, o cni.RepairOptions) (_ *cni.RepairReport, err error) {
	defer f.record(FakeCall{Method: "Repair", ContainerID: id}, &err)
	report, err := f.repair(ctx, id, o)
	if err != nil {
		err = fmt.Errorf("repair container %q: %w", id, err)
	}
	return report, err
}

var errGone = fmt.Errorf("%w: its network namespace is gone; call Remove or Recover", cni.ErrNotRepairable)

func (f *Fake) repair(ctx context.Context, id string, o cni.RepairOptions) (*cni.RepairReport, error) {
	all, unlock, err := f.h.lockAttached(ctx, id)
	if err != nil {
		return nil, err
	}
	defer unlock()
	report := &cni.RepairReport{ContainerID: id}
	for _, a := range all {
		f.h.mu.Lock()
		if isUnfinished(all, a) {
			report.Unknown = append(report.Unknown, a.error("REPAIR", id, "", fmt.Errorf("%w: its Setup was cut short, or its removal has begun", cni.ErrNotRepairable)))
			f.h.mu.Unlock()
			continue
		}
		report.Repaired = append(report.Repaired, a.repair(o.Inside)...)
		for _, d := range a.broken {
			reason := cni.ErrNotRepairable
			if d.Inside && d.Repairable {
				reason = cni.ErrInContainer
			}
			report.Remaining = append(report.Remaining, cni.Remaining{Difference: d, Reason: reason})
		}
		f.h.mu.Unlock()
		if err := f.h.fault(ctx, "CHECK", id, a); err != nil {
			report.Unknown = append(report.Unknown, fmt.Errorf("%w; %w", err, cni.ErrNotRepairable))
		}
	}
	return report, nil
}

// isHeld reports whether an attachment is held.
func (h *fakeHost) isHeld(id, network string) bool {
	return slices.ContainsFunc(h.holds, func(held cni.Hold) bool {
		return (held.ContainerID == "" || held.ContainerID == id) && (held.Network == "" || held.Network == network)
	})
}

// Hold is Runtime.Hold of package cni.
func (f *Fake) Hold(_ context.Context, held cni.Hold) (err error) {
	defer f.record(FakeCall{Method: "Hold", ContainerID: held.ContainerID}, &err)
	if held.ContainerID == "" && held.Network == "" {
		return fmt.Errorf("hold %s: %w: it names neither a container nor a network", held, cni.ErrInvalidArgument)
	}
	held.Owner, held.Since = f.me(), time.Now()
	f.h.mu.Lock()
	defer f.h.mu.Unlock()
	if held.ContainerID != "" && f.h.containers[held.ContainerID].find(func(a *fakeAttachment) bool { return held.Network == "" || a.Network == held.Network }) == nil {
		return fmt.Errorf("hold %s: %w", held, cni.ErrNotAttached)
	}
	f.h.holds = append(f.h.without(held), held)
	f.h.announce()
	return nil
}

// without returns the holds of others.
func (h *fakeHost) without(held cni.Hold) []cni.Hold {
	return slices.DeleteFunc(slices.Clone(h.holds), func(other cni.Hold) bool {
		return other.ContainerID == held.ContainerID && other.Network == held.Network
	})
}

// Unhold is Runtime.Unhold of package cni.
func (f *Fake) Unhold(_ context.Context, held cni.Hold) (err error) {
	defer f.record(FakeCall{Method: "Unhold", ContainerID: held.ContainerID}, &err)
	f.h.mu.Lock()
	defer f.h.mu.Unlock()
	left := f.h.without(held)
	if len(left) == len(f.h.holds) {
		return fmt.Errorf("unhold %s: %w", held, cni.ErrNotHeld)
	}
	f.h.holds = left
	f.h.announce()
	return nil
}

// Holds is Runtime.Holds of package cni.
func (f *Fake) Holds() (_ []cni.Hold, err error) {
	defer f.record(FakeCall{Method: "Holds"}, &err)
	f.h.mu.Lock()
	defer f.h.mu.Unlock()
	return slices.Clone(f.h.holds), nil
}

package watch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/cmd/embedcni/internal/words"
)

// verdict is what was said last of a container.
type verdict struct {
	state  cni.HealthState
	reason string
	parts  map[string]cni.Difference // by their words
}

func verdictOf(h cni.Health) verdict {
	v := verdict{state: h.State, parts: map[string]cni.Difference{}}
	if h.Reason != nil && h.State != cni.StateHealthy {
		v.reason = words.Line(h.Reason)
	}
	for _, d := range h.Differences {
		v.parts[d.String()] = d
	}
	return v
}

// compareVerdicts returns the events that lead from one verdict on a container to another.
func compareVerdicts(id string, before, after verdict) (events []Event) {
	for _, part := range slices.Sorted(maps.Keys(before.parts)) {
		// A part of which nothing is known now is not back.
		if _, ok := after.parts[part]; !ok && (after.state == cni.StateHealthy || after.state == cni.StateBroken) {
			events = append(events, ofPart(Back, id, before.parts[part]))
		}
	}
	for _, part := range slices.Sorted(maps.Keys(after.parts)) {
		if _, ok := before.parts[part]; !ok {
			events = append(events, ofPart(Lost, id, after.parts[part]))
		}
	}
	if before.state == after.state && before.reason == after.reason {
		return events
	}
	switch after.state {
	case cni.StateUnknown:
		events = append(events, Event{Event: Unknown, ContainerID: id, Detail: after.reason})
	case cni.StateGone, cni.StateElsewhere:
		events = append(events, Event{Event: Gone, ContainerID: id, Detail: after.reason})
	case cni.StateHealthy:
		if before.state != "" && before.state != cni.StateHealthy {
			events = append(events, Event{Event: Healthy, ContainerID: id})
		}
	}
	return events
}

func ofPart(kind Kind, id string, d cni.Difference) Event {
	detail := words.Lost(d)
	if kind == Back && d.Kind != "check" {
		detail = words.Part(d)
	}
	return Event{Event: kind, ContainerID: id, Network: d.Network, IfName: d.IfName, Detail: detail}
}

// Looking takes a fifth of a processor at most, as a guard's does.
const (
	quiet    = 100 * time.Millisecond
	patience = 300 * time.Millisecond
	restFor  = 4
)

// followHealth looks at all containers after changes, and reports what is different.
func (w *watcher) followHealth(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-w.changed:
		}
		if err := w.untilQuiet(ctx); err != nil {
			return err
		}
		began := time.Now()
		if err := w.look(ctx); err != nil && ctx.Err() == nil {
			w.trouble(fmt.Errorf("look at the containers: %w", err))
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(restFor * time.Since(began)):
		}
	}
}

// untilQuiet waits until nothing changes for a moment.
func (w *watcher) untilQuiet(ctx context.Context) error {
	last := time.After(patience)
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-w.changed:
		case <-time.After(quiet):
			return nil
		case <-last:
			return nil
		}
	}
}

// look compares all containers with their records. No plugin is asked for CHECK: an
// executable might change something, and so wake the next look.
func (w *watcher) look(ctx context.Context) error {
	w.mu.Lock()
	ids := map[string]bool{}
	for key := range w.records {
		if key.container != "" {
			ids[key.container] = true
		}
	}
	w.mu.Unlock()
	var all []cni.Health
	if len(ids) > 0 {
		var err error
		o := cni.HealthOptions{Containers: slices.Collect(maps.Keys(ids)), WithoutCheck: true}
		if all, err = w.rt.Health(ctx, o); err != nil {
			return err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now := map[string]verdict{}
	for _, h := range all {
		was, known := w.verdicts[h.ContainerID]
		if h.State == cni.StateNotAttached {
			continue // removed meanwhile: the records say so
		}
		if errors.Is(h.Reason, cni.ErrBusy) {
			if known { // the record changes when the call ends
				now[h.ContainerID] = was
			}
			continue
		}
		now[h.ContainerID] = verdictOf(h)
		w.report(compareVerdicts(h.ContainerID, was, now[h.ContainerID])...)
	}
	w.verdicts = now
	return nil
}

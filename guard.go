package cni

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/embedcni/cni/internal/guard"
)

// GuardClass is a class of things that Guard repairs, or several.
type GuardClass uint8

const (
	// GuardRules are packet filter rules and forwarded ports.
	GuardRules = GuardClass(guard.Rules)
	// GuardLinks are bridges with their addresses and sysctls, the ports on them, and their
	// queues.
	GuardLinks = GuardClass(guard.Links)
	// GuardRoutes are the host's routes to containers.
	GuardRoutes = GuardClass(guard.Routes)
)

// String lists the classes.
func (c GuardClass) String() string { return guard.Class(c).String() }

// GuardOptions configures Guard.
type GuardOptions struct {
	// Classes are the classes to repair; zero means all. The others are not watched.
	Classes GuardClass

	// LegacyInterval is the interval at which the legacy tables of iptables are read,
	// because the kernel announces no change of them. Zero leaves them unguarded; then
	// GuardUnguarded is reported if containers have rules there.
	LegacyInterval time.Duration

	// WithoutRetries leaves removals that failed to Recover and GC. Otherwise Guard
	// repeats them after a time that grows with each failure.
	WithoutRetries bool

	// GCInterval is the interval at which Guard runs GC, with the options that GC
	// returns, which must then be set. Zero runs none. If GC returns an error, that run is
	// left out, and reported as GuardFailed.
	GCInterval time.Duration
	GC         func(context.Context) (GCOptions, error)

	// Report is called with each event, by one goroutine at a time. It must not wait for
	// the Guard to end. The log has the same events.
	Report func(GuardEvent)
}

// GuardEventKind is the kind of a GuardEvent.
type GuardEventKind string

const (
	// GuardBegun: every change from here on is noticed.
	GuardBegun GuardEventKind = "begun"
	// GuardLooked: containers were compared with their records.
	GuardLooked GuardEventKind = "looked"
	// GuardRepaired: Difference was missing and is there again.
	GuardRepaired GuardEventKind = "repaired"
	// GuardContested: Difference was undone three times within a minute. It is left
	// until it is back, whoever brings it, or another Guard begins.
	GuardContested GuardEventKind = "contested"
	// GuardHeld: Difference is missing, and left because of a Hold.
	GuardHeld GuardEventKind = "held"
	// GuardLeft: Difference is not missing, or cannot be added.
	GuardLeft GuardEventKind = "left"
	// GuardUnguarded: containers have rules in legacy tables, whose changes the kernel
	// does not announce.
	GuardUnguarded GuardEventKind = "unguarded"
	// GuardRemoved: the removal of a container, which had failed before, has succeeded.
	GuardRemoved GuardEventKind = "removed"
	// GuardCollected: a GC has ended; see Report and Err.
	GuardCollected GuardEventKind = "collected"
	// GuardFailed: see Err. What failed is repeated.
	GuardFailed GuardEventKind = "failed"
)

// GuardEvent is something that a Guard did, or left.
type GuardEvent struct {
	Time        time.Time
	Kind        GuardEventKind
	ContainerID string
	Difference  *Difference // of the kinds that name it
	// By is the name of the process that was the last to delete or replace something in
	// the packet filter, if Difference is about rules and the kernel has said so. It need
	// not be the culprit, and is no process of this library.
	By     string
	Report *Report // of a GC
	Err    error
}

// String describes the event in a line.
func (e GuardEvent) String() string {
	s := string(e.Kind)
	if e.ContainerID != "" {
		s += " container " + e.ContainerID
	}
	if e.Difference != nil {
		s += ": " + e.Difference.String()
	}
	if e.By != "" {
		s += fmt.Sprintf(" (rules were last changed by %q)", e.By)
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Guard repairs what others break, until ctx ends: a firewall reload or a flushed table,
// an interface that is set down or taken from its bridge, a bridge that is deleted, a
// route to a container. It repairs by the rules of Repair: it adds missing parts that
// are on record, removes and overwrites nothing, and changes nothing in a container.
//
// Guard learns of changes from the kernel, in the namespace that WithHostNetNS names or
// else the caller's, and guards this owner's containers whose plugins ran there. While
// nothing is lost, nothing runs. The loss of an interface, an address or a route points
// at containers. Guard compares these with their records as soon as the announcements
// pause, locks each that lacks something, compares it again, and adds the missing parts.
// It compares all containers when announcements were dropped, and after each change of
// rules by another program, unless that only adds. Comparing is followed by a rest, so it
// takes a fifth of one processor at most. Changes that Setup and Remove make with built-in
// plugins wake no guard, and are not repaired; several guards, in one process or in many,
// do not undo each other's work.
//
// An administrator wins: see Hold; and a part that is undone three times within a minute
// is reported as GuardContested and left. Nothing is guarded unless Guard is called.
//
// Guard returns nil when ctx ends, after everything that it started has ended, and
// everything that it opened is closed. It returns an error if it cannot begin, or can no
// longer learn of changes. A container that Guard was repairing when the process was
// killed is repaired by the next Guard, which begins with a look at all containers.
func (r *Runtime) Guard(ctx context.Context, o GuardOptions) error {
	if err := r.guard(ctx, o); err != nil {
		return fmt.Errorf("guard: %w", err)
	}
	return nil
}

// kindOf returns the kind of the event for a decision that leaves something.
func kindOf(d guard.Decision) GuardEventKind {
	switch d {
	case guard.Contested:
		return GuardContested
	case guard.Held:
		return GuardHeld
	}
	return GuardLeft
}

// report reports an event of the core.
func (g *guarding) report(r guard.Report, d guard.Decision) {
	e := GuardEvent{ContainerID: r.Container, By: r.By, Err: r.Err}
	if detail, ok := r.Detail.(Difference); ok {
		e.ContainerID, e.Difference = r.Found.Container, &detail
	}
	switch r.Kind {
	case guard.Begun:
		e.Kind = GuardBegun
	case guard.Looked:
		e.Kind = GuardLooked
	case guard.Mended:
		e.Kind = GuardRepaired
	case guard.Left:
		e.Kind = kindOf(d)
	case guard.Failed:
		e.Kind = GuardFailed
	}
	g.tell(e)
}

// tell reports an event to the log and to the caller.
func (g *guarding) tell(e GuardEvent) {
	g.reporting.Lock()
	defer g.reporting.Unlock()
	e.Time = time.Now()
	level := slog.LevelInfo
	switch e.Kind {
	case GuardLooked:
		level = slog.LevelDebug
	case GuardContested, GuardFailed, GuardUnguarded:
		level = slog.LevelWarn
	}
	logger := g.runtime.current.Load().logger
	if e.ContainerID != "" {
		logger = logger.With("container", e.ContainerID)
	}
	logger.Log(context.Background(), level, "guard: "+string(e.Kind), "difference", e.Difference, "by", e.By, "error", e.Err)
	if g.options.Report != nil {
		g.options.Report(e)
	}
}

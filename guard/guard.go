package guard

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/run/contract"
)

// Class is a class of things that a guard repairs, or several.
type Class uint8

const (
	// Rules are packet filter rules and forwarded ports.
	Rules Class = 1 << iota
	// Links are bridges with their addresses and sysctls, the ports on them, and their
	// queues.
	Links
	// Routes are the host's routes to containers.
	Routes

	all = Rules | Links | Routes
)

// String lists the classes.
func (c Class) String() string {
	var names []string
	for i, name := range []string{"rules", "links", "routes"} {
		if c&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// classOf returns the class of a difference, or zero if it is not guarded.
func classOf(d cni.Difference) Class {
	if d.Inside {
		return 0
	}
	switch contract.Kind(d.Kind) {
	case contract.Rule, contract.Port, contract.Zone:
		return Rules
	case contract.Interface, contract.Address, contract.Bridge, contract.BridgePort, contract.Queue, contract.Sysctl: // a new bridge has new sysctls
		return Links
	case contract.Route:
		return Routes
	}
	return 0
}

// Options configures Run.
type Options struct {
	// Classes are the classes to repair; zero means all. The others are not watched.
	Classes Class

	// LegacyInterval is the interval at which all containers are looked at for the sake of
	// the legacy tables of iptables, because the kernel announces no change of them. Zero
	// leaves these unguarded; then Unguarded is reported if containers have rules there.
	LegacyInterval time.Duration

	// Report is called with each event, by one goroutine at a time. It must not wait for
	// the guard to end.
	Report func(Event)
	// Logger gets the same events. Nil logs nothing.
	Logger *slog.Logger
}

// Kind is the kind of an Event.
type Kind string

const (
	// Begun: every change from here on is noticed.
	Begun Kind = "begun"
	// Looked: containers were compared with their records.
	Looked Kind = "looked"
	// Repaired: Difference was missing and is there again.
	Repaired Kind = "repaired"
	// Contested: Difference was undone three times within a minute. It is left until it
	// is back, whoever brings it, or another guard begins.
	Contested Kind = "contested"
	// Held: Difference is missing, and left because of a Hold.
	Held Kind = "held"
	// Left: Difference is not missing, or cannot be added.
	Left Kind = "left"
	// Unguarded: containers have rules in the legacy tables of iptables, of whose changes
	// the kernel informs nobody; see Options.LegacyInterval.
	Unguarded Kind = "unguarded"
	// Failed: see Err. What failed is repeated.
	Failed Kind = "failed"
)

// Event is something that a guard did, or left.
type Event struct {
	Time        time.Time
	Kind        Kind
	ContainerID string
	Difference  *cni.Difference // of the kinds that name it
	// By is the name of the process that was the last to delete or replace something in
	// the packet filter, if Difference is about rules and the kernel has said so. It need
	// not be the culprit, and is no process of this library.
	By  string
	Err error
}

// String describes the event in a line.
func (e Event) String() string {
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

// tell reports an event to the log and to the caller.
func (g *guard) tell(e Event) {
	g.telling.Lock()
	defer g.telling.Unlock()
	e.Time = time.Now()
	level := slog.LevelInfo
	switch e.Kind {
	case Looked:
		level = slog.LevelDebug
	case Contested, Failed, Unguarded:
		level = slog.LevelWarn
	}
	if g.options.Logger != nil {
		g.options.Logger.Log(context.Background(), level, "guard: "+string(e.Kind),
			"container", e.ContainerID, "difference", e.Difference, "by", e.By, "error", e.Err)
	}
	if g.options.Report != nil {
		g.options.Report(e)
	}
}

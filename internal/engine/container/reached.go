package container

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/outcome"
)

// Reached is the way in which a recorded namespace was found.
type Reached int

const (
	NotReached Reached = iota // it is gone
	ByPath                    // the recorded path leads there
	ByPin                     // the pin does, or a descriptor of this process
	ByProcess                 // neither does, and a process is in it
	// Unsure: neither does. Either a process is in a namespace with the recorded number,
	// which may be another's by now, and no interface tells the two apart; or the path was
	// recorded in another mount or PID namespace, and nothing shows here whether it lives.
	Unsure
	// Elsewhere: neither does, but the host's end of one of its interfaces exists, so that
	// it lives: in another mount namespace, for example.
	Elsewhere
	// LetGo: the runtime no longer keeps it, and no path leads there, but the host's
	// ends of its interfaces still exist. So somebody else keeps it, or it is about to
	// end.
	LetGo
)

// doubts are the reasons why a container that was not reached may live.
var doubts = map[Reached]error{
	Unsure: errors.New("no path leads to the container's network namespace from here, and nothing shows whether it lives; " +
		"call Remove if the container is gone"),
	Elsewhere: errors.New("no path leads to the container's network namespace from here, which lives: " +
		"the host's end of an interface in it exists; call Remove if the container is gone"),
	LetGo: errors.New("the path no longer leads to the container's network namespace, which is not kept any more; " +
		"the host's end of an interface in it is still there, so that it lives or is about to end; call Remove if the container is gone"),
}

// EndsWithin is long for the kernel to end a namespace that nothing refers to any more.
const EndsWithin = time.Second

// doubt returns why the container may live, if it was reached in one of these ways.
func (p *Place) doubt(among ...Reached) error {
	if !slices.Contains(among, p.Reached) {
		return nil
	}
	return fmt.Errorf("%s: %w", p.of.Record.NetNS.Path, doubts[p.Reached])
}

// Uncertain returns an error if it is unknown whether the recorded namespace is
// alive. Then nothing is removed unless the caller asks for it, and no DEL runs
// in the namespace.
func (p *Place) Uncertain() error { return p.doubt(Unsure) }

// Undecided returns an error if Recover must leave the container as it is.
func (p *Place) Undecided() error { return p.doubt(Unsure, LetGo) }

// IsAbandoned reports whether only this library still keeps the recorded
// namespace, if it exists at all: the recorded path no longer leads there, and
// no visible process is in it. A path that was recorded in another mount or PID
// namespace may still lead there.
func (p *Place) IsAbandoned() bool {
	if p.of.Record == nil || p.of.Damaged {
		return false
	}
	switch p.Reached {
	case ByPath, ByProcess, Unsure:
		return false
	case ByPin:
		return p.isRecordedHere() && !p.isInhabited()
	case Elsewhere:
		return p.isRecordedHere()
	}
	return true
}

// OutOfReach returns why a container on record cannot be compared with the kernel, or
// nil if it can. gone reports that it is certainly dead. The recorded namespaces are
// open.
func (p *Place) OutOfReach() (gone bool, why error) {
	switch {
	case p.of.Damaged:
		return false, fmt.Errorf("it may live, and its record is damaged, so that it cannot be checked; call Remove if it is gone: %w", record.ErrBad)
	case p.Rebooted:
		return true, errors.New("it was attached before the machine was rebooted")
	case doubts[p.Reached] != nil:
		return false, p.doubt(p.Reached)
	case p.Gone():
		return true, fmt.Errorf("%s: its network namespace is gone", p.of.Record.NetNS.Path)
	case p.HostGone:
		return false, fmt.Errorf("the namespace %s that its plugins ran in is gone: %w", p.of.RecordedHost(), outcome.ErrHostNetNS)
	case p.IsAbandoned():
		return false, fmt.Errorf("%s no longer leads to its namespace, which is kept at %s: %w", p.of.Record.NetNS.Path, p.Path, outcome.ErrInvalidNetNS)
	}
	return false, nil
}

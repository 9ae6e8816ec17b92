package container

import (
	"errors"
	"fmt"
)

// Reached is the way in which a recorded namespace was found.
type Reached int

const (
	NotReached Reached = iota // it is gone
	ByPath                    // the recorded path leads there
	ByPin                     // the pin does, or a descriptor of this process
	ByProcess                 // neither does, and a process is in it
	// Unsure: neither does, and a process is in a namespace with the recorded number.
	// The number may be another's by now, and no interface tells the two apart.
	Unsure
	// LetGo: the runtime no longer keeps it, and no path leads there, but the host's
	// ends of its interfaces still exist. So somebody else keeps it, or it is about to
	// end.
	LetGo
)

var (
	errUncertain = errors.New("no path leads to the container's network namespace, and a process is in one with its number " +
		"that has none of its interfaces; call Remove if the container is gone")
	errLetGo = errors.New("the path no longer leads to the container's network namespace, which is not kept any more; " +
		"the host's end of an interface in it is still there, so that it lives or is about to end; call Remove if the container is gone")
)

// Uncertain returns an error if it is unknown whether the recorded namespace is
// alive. Then nothing is removed unless the caller asks for it, and no DEL runs
// in the namespace.
func (c *Container) Uncertain() error {
	if c.Reached != Unsure {
		return nil
	}
	return fmt.Errorf("%s: %w", c.Record.NetNS.Path, errUncertain)
}

// Undecided returns an error if Recover must leave the container as it is.
func (c *Container) Undecided() error {
	if c.Reached == LetGo {
		return fmt.Errorf("%s: %w", c.Record.NetNS.Path, errLetGo)
	}
	return c.Uncertain()
}

// IsAbandoned reports whether only this library still keeps the recorded
// namespace, if it exists at all: the recorded path no longer leads there, and
// no visible process is in it.
func (c *Container) IsAbandoned() bool {
	if c.Record == nil || c.Damaged {
		return false
	}
	switch c.Reached {
	case ByPath, ByProcess, Unsure:
		return false
	case ByPin:
		return !c.isInhabited()
	}
	return true
}

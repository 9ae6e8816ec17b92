package container

import (
	"errors"
	"fmt"

	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/record"
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

var (
	errRebooted  = errors.New("it was attached before the machine was rebooted")
	errNetNSGone = errors.New("its network namespace is gone")
)

// OutOfReach returns why a container on record cannot be compared with the kernel, or
// nil if it can. gone reports that it is certainly dead. The recorded namespaces are
// open.
func (c *Container) OutOfReach() (gone bool, why error) {
	switch {
	case c.Damaged:
		return false, fmt.Errorf("it may live, and its record is damaged, so that it cannot be checked; call Remove if it is gone: %w", record.ErrBad)
	case c.Rebooted:
		return true, errRebooted
	case c.Undecided() != nil:
		return false, c.Undecided()
	case c.Gone():
		return true, fmt.Errorf("%s: %w", c.Record.NetNS.Path, errNetNSGone)
	case c.HostGone:
		return false, fmt.Errorf("the namespace %s that its plugins ran in is gone: %w", c.RecordedHost(), ErrHostNetNS)
	case c.IsAbandoned():
		return false, fmt.Errorf("%s no longer leads to its namespace, which is kept at %s: %w", c.Record.NetNS.Path, c.Path, hostns.ErrInvalid)
	}
	return false, nil
}

package cni

import (
	"errors"
	"fmt"
)

// reached says how a recorded namespace was found.
type reached int

const (
	notReached reached = iota // it is gone
	byPath                    // the recorded path leads there
	byPin                     // the pin does, or a descriptor of this process
	byProcess                 // neither does, and a process is in it
	// unsure: neither does, and a process is in one with the recorded number. The
	// number may be another's by now, and nothing tells.
	unsure
	// letGo: the runtime no longer keeps it, and no path leads there, but the host's
	// ends of its interfaces still exist. So somebody else keeps it, or it is about to
	// end.
	letGo
)

// errUncertain: it is not known whether a container's namespace lives.
var errUncertain = errors.New("no path leads to the container's network namespace, and a process is in one with its number " +
	"that has none of its interfaces; call Remove if the container is gone")

// uncertain is an error if it is not known whether the recorded namespace lives.
// Then nothing is removed unless the caller says so, and no DEL runs in there.
func (op *operation) uncertain() error {
	if op.reached != unsure {
		return nil
	}
	return fmt.Errorf("%s: %w", op.rec.NetNS.Path, errUncertain)
}

// errLetGo means that the runtime no longer keeps a namespace, which has not ended.
var errLetGo = errors.New("the path no longer leads to the container's network namespace, which is not kept any more; " +
	"the host's end of an interface in it is still there, so that it lives or is about to end; call Remove if the container is gone")

// undecided returns an error if Recover must leave the container as it is.
func (op *operation) undecided() error {
	if op.reached == letGo {
		return fmt.Errorf("%s: %w", op.rec.NetNS.Path, errLetGo)
	}
	return op.uncertain()
}

// abandoned reports whether the recorded namespace is nobody's but ours, if it is
// still there: the recorded path no longer leads there, and no process that can
// be seen is in it.
func (op *operation) abandoned() bool {
	if op.rec == nil || op.damaged {
		return false
	}
	switch op.reached {
	case byPath, byProcess, unsure:
		return false
	case byPin:
		return !op.inhabited()
	}
	return true
}

// Package guarded translates records and differences for package guard, as package
// hostwatch does with the announcements of the kernel:
//
//	records that change ─► Records ─► containers with the signs by which a loss of
//	                                  theirs is known
//	a difference ────────► ClassOf ─► the class that it belongs to
package guarded

import (
	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/guard"
	"github.com/embedcni/cni/internal/record"
)

// Scope selects the containers that are guarded: those with attachments of an owner
// that were made in one boot of the machine, by plugins in one namespace.
type Scope struct {
	Owner, Boot string
	Host        string // the namespace
}

// Includes reports whether the container of a record is guarded.
func (s Scope) Includes(rec *record.Record) bool {
	return !rec.Warm && rec.Host == s.Host && rec.Boot == s.Boot && rec.Owned(s.Owner)
}

// ClassOf returns the class of a difference, or zero if it is not guarded.
func ClassOf(d compare.Difference) guard.Class {
	if d.Inside {
		return 0
	}
	switch d.Kind {
	case compare.Rule, compare.Port, compare.Zone:
		return guard.Rules
	case compare.Interface, compare.Address, compare.Bridge, compare.BridgePort, compare.Queue, compare.Sysctl: // a new bridge has new sysctls
		return guard.Links
	case compare.Route:
		return guard.Routes
	}
	return 0
}

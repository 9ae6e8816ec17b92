package engine

import (
	"fmt"
	"strings"

	"github.com/embedcni/cni/internal/compare"
)

// kindCheck is the kind of a difference that a plugin's CHECK has found.
const kindCheck = "check"

// difference is one thing that is missing or different; see cni.Difference.
type Difference struct {
	Network, IfName, Plugin string
	Kind                    string
	Inside                  bool // in the container's namespace
	Object, Wanted, Found   string
	Repairable              bool
	Why                     string // it is not repairable
	Err                     error
}

// String says what differs.
func (d Difference) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "network %q, interface %s, plugin %s: %s", d.Network, d.IfName, d.Plugin, d.Kind)
	if d.Object != "" {
		fmt.Fprintf(&b, " %s", d.Object)
	}
	if d.Inside {
		b.WriteString(" in the container")
	}
	switch {
	case d.Kind == kindCheck:
		fmt.Fprintf(&b, ": %v", d.Err)
	case d.Found == "":
		b.WriteString(" is missing")
	default:
		fmt.Fprintf(&b, " is %s, not %s", d.Found, d.Wanted)
	}
	if !d.Repairable && d.Why != "" {
		fmt.Fprintf(&b, " (not repairable: %s)", d.Why)
	}
	return b.String()
}

// differenceOf returns a difference of an attachment as callers see it.
func differenceOf(network, ifName string, d compare.Difference) Difference {
	public := Difference{
		Network: network, IfName: ifName, Plugin: d.Plugin, Kind: string(d.Kind), Inside: d.Inside,
		Object: d.Object, Wanted: d.Wanted, Found: d.Found, Repairable: d.Fix != nil, Why: d.Why, Err: d.Err,
	}
	if !public.Repairable && public.Why == "" {
		public.Why = "adding something does not put it right"
	}
	return public
}

package cni

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/embedcni/cni/internal/compare"
)

// kindCheck is the kind of a difference that only a plugin's CHECK has found.
const kindCheck = "check"

// Difference is a part of an attachment that is missing, or is not as its ADD made it.
type Difference struct {
	Network string
	IfName  string
	Plugin  string // the type of the plugin whose part it is
	// Kind is the kind of the object: interface, address, route, queue, bridge, bridge port,
	// sysctl, reservation (of an address, by an IPAM plugin), rule (of a packet filter), port
	// (of the host, forwarded to the container), zone (of firewalld), or check: the CHECK of a
	// plugin has failed, and only that plugin knows more than Err.
	Kind   string
	Inside bool   // it is in the container's namespace; else it is on the host
	Object string // its name: "vethab12", "10.1.0.1/24 on cni0", "tcp 8080"
	Wanted string // its recorded value
	Found  string // its value now; empty if it is missing

	// Repairable reports whether Repair can put it right. Inside a container Repair
	// changes nothing unless it is asked to. Otherwise Why says why not.
	Repairable bool
	Why        string

	Err error // the error of CHECK for it
}

// String describes the difference in a line.
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

// MarshalJSON encodes the difference as an object with the names of its fields. Err
// becomes its text.
func (d Difference) MarshalJSON() ([]byte, error) {
	type plain Difference
	return json.Marshal(struct {
		plain
		Err string
	}{plain(d), textOf(d.Err)})
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

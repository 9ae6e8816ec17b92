package outcome

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/run/contract"
)

// HealthState is the verdict on a container.
type HealthState string

const (
	// StateHealthy: nothing is missing or different, as far as anybody can tell; see
	// [Health].Uncompared.
	StateHealthy HealthState = "healthy"
	// StateBroken: something is missing or different; see [Health].Differences.
	StateBroken HealthState = "broken"
	// StateUnknown: it is not known whether the container is healthy; see [Health].Reason.
	StateUnknown HealthState = "unknown"
	// StateGone: its network namespace is gone, or was of an earlier boot of the machine.
	// Remove or Recover removes it.
	StateGone HealthState = "gone"
	// StateNotAttached: no attachment of it is on record.
	StateNotAttached HealthState = "not attached"
	// StateElsewhere: it is attached in another network namespace than the one in
	// HealthOptions.NetNS, or that path leads to none.
	StateElsewhere HealthState = "elsewhere"
)

// Health is the verdict on one container. Printed it has a line for the container, and one
// for each difference. Its JSON has the names of the fields, and the text of Reason.
//
// A broken container has a Reason too if a part of it could not be examined, and a healthy
// one if the CHECK of a plugin has failed over a difference that does not matter and that
// nobody restores, such as another hardware address of the bridge. If the CHECK of a plugin
// fails for healthy containers too, and the comparison finds nothing wrong, the state is
// unknown: the bridge plugin's does without an IPAM plugin, and others of the reference
// plugins do in some configurations. These errors are among the reasons:
//
//   - [context.DeadlineExceeded]: a plugin took too long for CHECK, or the budget was used up
//   - [ErrPluginKilled], [ErrNoAnswer]: a plugin ended without an answer
//   - [ErrPluginNotReady]: a plugin wants to be asked later, or is not available
//   - [ErrNoCheck]: the configuration is older than CHECK
//   - [ErrPluginNotFound], [ErrInsecureFile]
//   - [ErrBusy]: another call for the container is in progress
//   - [ErrInvalidNetNS]: its path no longer leads to its namespace
//   - [ErrHostNetNS]: the namespace in which its plugins ran is gone, or out of reach
//   - [*RecordError]
type Health struct {
	ContainerID string // or, for a record that names none, "record" and its file's name
	State       HealthState

	// Differences are the parts that are missing or different. Only a broken container
	// has any.
	Differences []Difference

	// Reason is why the state is unknown, or the container gone.
	Reason error

	// Uncompared are the types of plugins whose part nobody has compared, and whose CHECK
	// was not asked because HealthOptions or the network's disableCheck forbid it.
	Uncompared []string
}

// Err returns nil if the container is healthy, and otherwise an error with the
// differences and the reason, which does not name the container. errors.Is and errors.As find what Reason and the
// differences wrap.
func (h Health) Err() error {
	if h.State == StateHealthy {
		return nil
	}
	var errs []error
	for _, d := range h.Differences {
		errs = append(errs, d.Err)
	}
	err := joined.Errors(append(errs, h.Reason)...)
	if err == nil && h.State == StateNotAttached {
		return ErrNotAttached
	}
	return err
}

// String has a line for the container, and one for each difference.
func (h Health) String() string {
	line := fmt.Sprintf("%s: %s", h.ContainerID, h.State)
	if h.Reason != nil {
		line += ": " + h.Reason.Error()
	}
	if len(h.Uncompared) > 0 {
		line += "; not compared: " + strings.Join(h.Uncompared, ", ")
	}
	for _, d := range h.Differences {
		line += "\n  " + d.String()
	}
	return line
}

// MarshalJSON encodes the verdict as an object with the names of its fields. Reason
// becomes its text.
func (h Health) MarshalJSON() ([]byte, error) {
	type plain Health
	return json.Marshal(struct {
		plain
		Reason string
	}{plain(h), textOf(h.Reason)})
}

func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Difference is a part of an attachment that is missing, or is not as its ADD made it.
// Printed it is a line. Its JSON has the names of the fields, and the text of Err.
type Difference struct {
	Network, IfName string
	Plugin          string // the type of the plugin whose part it is

	// Kind is the kind of the object: interface, address, route, queue, bridge, bridge port,
	// sysctl, reservation (of an address, by an IPAM plugin), rule (of a packet filter), port
	// (of the host, forwarded to the container), zone (of firewalld), lease (of flanneld,
	// for the subnet of an address), or check: the CHECK of a
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

	// Repaired: it was missing, and is there again. It is set in what a repair reports.
	Repaired bool `json:",omitempty"`

	Err error // the error of CHECK for it
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

// String says what differs, or what a repair has found.
func (d Difference) String() string {
	s := d.what()
	if !d.Repaired && !d.Repairable && d.Why != "" {
		s += fmt.Sprintf(" (not repairable: %s)", d.Why)
	}
	return s
}

// what is String without the reason why nobody can repair it.
func (d Difference) what() string {
	var b strings.Builder
	fmt.Fprintf(&b, "network %q, interface %s, plugin %s: %s", d.Network, d.IfName, d.Plugin, d.Kind)
	if d.Object != "" {
		fmt.Fprintf(&b, " %s", d.Object)
	}
	if d.Inside {
		b.WriteString(" in the container")
	}
	is := "is"
	if d.Repaired {
		is = "was"
	}
	switch {
	case d.Kind == string(contract.FailedCheck):
		fmt.Fprintf(&b, ": %v", d.Err)
	case d.Found == "":
		fmt.Fprintf(&b, " %s missing", is)
	default:
		fmt.Fprintf(&b, " %s %s, not %s", is, d.Found, d.Wanted)
	}
	return b.String()
}

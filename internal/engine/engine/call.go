package engine

import (
	"maps"
	"reflect"
	"slices"

	"github.com/embedcni/cni/internal/engine/container"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/store/record"
)

// Call is what a verb is to do with one container. It holds values alone: the caller's
// options are resolved before anything is opened or locked.
type Call struct {
	ID    record.ID
	Path  string
	Makes bool // the ADD makes the namespace

	// Planned are the attachments that an ADD or CHECK is about, or that a removal
	// assumes if the container is on no record. Err is why there is no such plan.
	Planned []*Planned
	Err     error
	// Selected are the networks that the caller names; nil means all.
	Selected []Selected
	Ignored  []string // capabilities without effect, see SetupResult
}

// Planned is one attachment as the caller wants it, which is also what its record says.
type Planned struct {
	chain.Attachment
	Network   *Network
	mapped    []Mapping         // by a capability, beside ports
	Ports     *askedPorts       // whose host ports may have to be chosen; nil: none, or no plugin takes them
	Metadata  map[string]string // of the caller's, for the record
	OwnConfig bool              // the configuration was given with the call
	Dirs      []string          // of executables, that come first
	Prev      chain.Partial     // a result of the caller's, which the first plugin gets
}

// Selected is a network that a caller names.
type Selected struct {
	Network string
	IfName  string // empty means all attachments to the network
	// Unknown is an error unless the network is loaded, or its configuration was given
	// with the call. The container's record may still know it.
	Unknown error
}

// take makes the attachments of a plan, which stays as it is: a call may be tried again.
func (op *operation) take(plan []*Planned) (all attachments) {
	for _, p := range plan {
		a := &attachment{plan: *p, op: op}
		a.plan.CapabilityArgs, a.plan.ConfigArgs = maps.Clone(p.CapabilityArgs), maps.Clone(p.ConfigArgs)
		all = append(all, a)
	}
	return all
}

// attachment returns an attachment to a network of which nothing is known but its names.
func (op *operation) attachment(n *Network, ifName string) *attachment {
	a := &attachment{op: op}
	a.plan.Network, a.plan.IfName = n, ifName
	a.plan.ContainerID = string(op.c.Recorded.PluginID())
	return a
}

// plain returns plans for all loaded networks whose names allow that the container was
// attached to them.
func plain(eng *Engine, id record.ID) (all []*Planned) {
	for _, n := range eng.networks {
		if IsAttachable(n.Config.Name, id, n.IfName) {
			p := &Planned{Network: n}
			p.ContainerID, p.IfName = string(id), n.IfName
			all = append(all, p)
		}
	}
	return all
}

// IsAttachable reports whether the names allow that the container was attached to the
// network.
func IsAttachable(network string, id record.ID, ifName string) bool {
	return network != "" && ValidateIfName(ifName) == nil && ValidateAttachmentName(network, string(id), ifName) == nil
}

// Shared reports whether another loaded network has the same name.
func (eng *Engine) Shared(n *Network) bool {
	return slices.ContainsFunc(eng.networks, func(other *Network) bool { return other != n && other.Config.Name == n.Config.Name })
}

// loadedAs returns the loaded networks with a name, in the order in which they were loaded.
func (eng *Engine) loadedAs(name string) (found []*Network) {
	for _, n := range eng.networks {
		if n.Config.Name == name {
			found = append(found, n)
		}
	}
	return found
}

// callsNetworks returns the loaded networks, and those of the call's attachments that are
// not loaded.
func (in cache) callsNetworks() []*Network {
	all := slices.Clone(in.op.eng.networks)
	for _, a := range in.op.attachments {
		if in.op.eng.loadedAs(a.plan.Network.Config.Name) == nil {
			all = append(all, a.plan.Network)
		}
	}
	return all
}

// about returns an attachment without a container, for verbs on a network. It has an
// interface name only if several loaded networks have the same name. With host its plugins
// can run.
func about(eng *Engine, n *Network, host *container.Host) *attachment {
	a := &attachment{op: &operation{eng: eng}}
	if host != nil {
		a.op.c = eng.Store.New("", host)
	}
	a.plan.Network = n
	if eng.Shared(n) {
		a.plan.IfName = n.IfName
	}
	return a
}

// narrow keeps only the attachments that the caller names.
func (op *operation) narrow(named []Selected) error {
	if len(named) == 0 {
		return nil
	}
	var kept attachments
	for _, sel := range named {
		found := false
		for _, a := range op.attachments {
			if a.plan.Network.Config.Name == sel.Network && (sel.IfName == "" || sel.IfName == a.plan.IfName) {
				kept = append(kept, a)
				found = true
			}
		}
		if !found && sel.Unknown != nil {
			return sel.Unknown
		}
	}
	op.attachments = kept
	return nil
}

// Merge adds the values for one network to those for all, and prefers them.
func Merge[V any](all, one map[string]V) map[string]V {
	merged := maps.Clone(all)
	if merged == nil {
		merged = map[string]V{}
	}
	maps.Copy(merged, one)
	return merged
}

// IsEmpty reports whether a capability asks for nothing, for example an empty
// list of ports.
func IsEmpty(value any) bool {
	if value == nil {
		return true
	}
	switch v := reflect.ValueOf(value); v.Kind() {
	case reflect.Slice, reflect.Map, reflect.String:
		return v.Len() == 0
	default:
		return false
	}
}

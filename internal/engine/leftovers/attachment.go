package leftovers

import (
	"encoding/json"
	"slices"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/kernel/netfilter"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/internal/store/record"
)

// Attachment is one attachment, as far as it is known: its entry in the record, or
// without a record the configuration and libcni's cache. It is only read, and owns nothing.
type Attachment struct {
	Params   chain.Attachment          // of its plugins
	Recorded bool                      // the entry is whole, so that Params are those of the ADD
	List     *libcni.NetworkConfigList // the configuration of the network, with delegates in the place of flannel
	Kept     []string                  // the files that flannel keeps
	Result   json.RawMessage           // of the last plugin that answered; nil if none did

	// PrevResult was given to the first plugin. Its interfaces are others'.
	PrevResult json.RawMessage

	Ran    Ran
	Given  func() contract.Given // what its plugins are lent
	Kernel Kernel
}

// Ran are the plugins that attached a container, as far as they are known.
type Ran struct {
	// Plugins has a type once each. It is empty if no record names them. IsRegistered
	// then tells by the type whether it was a plugin of the caller's.
	Plugins      []record.Plugin
	IsRegistered func(typ string) bool
}

// Kernel tells what the kernel may still have of an attachment.
type Kernel struct {
	Rebooted bool            // the machine was rebooted since: nothing
	HostGone bool            // the network namespace in which the plugins ran is gone
	Noted    json.RawMessage // the note [DeviceFact]
}

// Owner names the attachment in the rules of the firewall.
func (a *Attachment) Owner() netfilter.Owner {
	return netfilter.Owner{Network: a.List.Name, ContainerID: a.Params.ContainerID, IfName: a.Params.IfName}
}

// Key names the attachment among all.
func (a *Attachment) Key() Key {
	return Key{ContainerID: record.PluginID(a.Params.ContainerID), Network: a.List.Name, IfName: a.Params.IfName}
}

// Plugin returns the plugin of a type that attached the container. Known reports
// whether the record names plugins at all.
func (r Ran) Plugin(typ string) (p record.Plugin, known bool) {
	if i := slices.IndexFunc(r.Plugins, func(p record.Plugin) bool { return p.Type == typ }); i >= 0 {
		p = r.Plugins[i]
	}
	return p, len(r.Plugins) > 0
}

// IsCallers reports whether the caller's own plugin of a type attached the
// container. The leftovers of such a plugin are unknown.
func (r Ran) IsCallers(typ string) bool {
	if p, known := r.Plugin(typ); known {
		return p.Kind == record.KindRegistered
	}
	return r.IsRegistered != nil && r.IsRegistered(typ)
}

// IsBuiltIn reports whether a built-in plugin is known to have attached the
// container.
func (r Ran) IsBuiltIn(typ string) bool {
	p, _ := r.Plugin(typ)
	return p.Kind == record.KindBuiltIn
}

// Has reports whether a plugin of a type is in the chain.
func (a *Attachment) Has(typ string) bool {
	return slices.ContainsFunc(a.List.Plugins, func(p *libcni.PluginConfig) bool { return p.Network.Type == typ })
}

// first returns the type of the plugin that makes the interface.
func (a *Attachment) first() string {
	if len(a.List.Plugins) == 0 {
		return ""
	}
	return a.List.Plugins[0].Network.Type
}

// MadeInterface reports whether the ADD has made an interface of the attachment's
// name, other than lo, by its result. A loopback under another name, a device for a
// driver in user space (pciID, socketPath) and a plugin that only makes rules have
// none. Without a result, or with one of a version that lists no interfaces, the type of
// the first plugin decides.
func (a *Attachment) MadeInterface() bool {
	if a.Params.IfName == "lo" {
		return false
	}
	result := chain.Decode(a.Result)
	if result == nil || len(result.Interfaces) == 0 {
		return result == nil || conflist.Known(a.first()).Makes.IsNew()
	}
	return slices.ContainsFunc(result.Interfaces, func(i *types100.Interface) bool {
		return i.Name == a.Params.IfName && i.Sandbox != "" && i.PciID == "" && i.SocketPath == ""
	})
}

// Device returns the attachment's interface. It returns nil if that was not noted, or
// cannot exist: a rebooted host has its devices back, and they are gone with the
// host's namespace.
func (k Kernel) Device() *Device {
	if k.isOver() {
		return nil
	}
	return DecodeDevice(k.Noted)
}

// isOver reports whether the attachment's interface is gone or the host's again.
func (k Kernel) isOver() bool { return k.Rebooted || k.HostGone }

// Covers reports whether the sweep finds and removes everything that a plugin of
// the attachment can leave. A plugin that changes an interface which outlives the
// attachment is covered only if that interface is known.
func (a *Attachment) Covers(typ string) bool {
	if a.Ran.IsCallers(typ) {
		return false
	}
	if typ == conflist.Flannel && !a.Has(typ) {
		return a.Covers(a.first()) // its delegate, and the file is found
	}
	t := conflist.Known(typ)
	if t.Borrows {
		return !a.Has(typ) || a.knowsInterface()
	}
	return t.Swept
}

// CoversIPAM reports whether the sweep releases everything that an IPAM plugin of the
// attachment can hold.
func (a *Attachment) CoversIPAM(typ string) bool {
	return conflist.Known(typ).IPAM && !a.Ran.IsCallers(typ)
}

// sweepsDelegates reports whether flannel's files need not stay for another DEL after one
// that has failed: the sweep covers all that its delegates can leave.
func (a *Attachment) sweepsDelegates() bool {
	return a.Covers(conflist.Flannel) && !slices.ContainsFunc(a.List.Plugins, func(p *libcni.PluginConfig) bool {
		return p.Network.IPAM.Type != "" && !a.CoversIPAM(p.Network.IPAM.Type)
	})
}

// knowsInterface reports whether the interface ends with the attachment, or is one of
// the host's that can be found.
func (a *Attachment) knowsInterface() bool {
	first := a.first()
	if a.Ran.IsCallers(first) {
		return false
	}
	switch makes := conflist.Known(first).Makes; makes {
	case conflist.Moved:
		d := a.Kernel.Device()
		return a.Kernel.isOver() || d != nil && d.HostName != ""
	default:
		return makes == conflist.Lo || makes.IsOwned()
	}
}

package conflist

import (
	"slices"

	"github.com/containernetworking/cni/libcni"
)

// The plugin types that the library knows. A type that is not among them may do anything.
const (
	Bandwidth  = "bandwidth"
	Bridge     = "bridge"
	Dummy      = "dummy"
	Firewall   = "firewall"
	Flannel    = "flannel"
	HostDevice = "host-device"
	HostLocal  = "host-local"
	IPVLAN     = "ipvlan"
	Loopback   = "loopback"
	MACVLAN    = "macvlan"
	Portmap    = "portmap"
	PTP        = "ptp"
	SBR        = "sbr"
	Static     = "static"
	Tap        = "tap"
	Tuning     = "tuning"
	VLAN       = "vlan"
)

// Interface is the kind of interface that an ADD puts into the container.
type Interface int

const (
	NoInterface Interface = iota
	Lo                    // lo, which is there already
	Veth                  // one end of a veth pair; the result names the other end
	Stacked               // an interface on top of one of the host's
	Moved                 // an interface of the host, which DEL moves back
	Unswept               // an interface that the sweep does not look for
)

// IsNew reports whether there must be no interface of that name before the ADD.
func (i Interface) IsNew() bool { return i != NoInterface && i != Lo }

// IsOwned reports whether the interface ends with the attachment.
func (i Interface) IsOwned() bool { return i == Veth || i == Stacked }

// NeedsIdentity reports whether the name alone does not identify the interface.
// A veth pair is identified by the end on the host; the others have nothing there.
func (i Interface) NeedsIdentity() bool { return i == Stacked || i == Moved }

// Rules is the kind of packet filter rules that an ADD can make.
type Rules int

const (
	NoRules    Rules = iota
	Masquerade       // if the configuration asks for it
	HostPorts        // for the capability portMappings
	Forward          // by the container's addresses
)

// Type describes the plugins of one type: the interfaces, rules and files that they make,
// and the needs of their removal. It describes the reference plugin and the built-in plugin,
// which take the same configuration, but not a plugin that the caller registers under the
// same name.
type Type struct {
	Makes        Interface
	Rules        Rules
	IPAM         bool     // assigns addresses; the sweep releases them
	KernelOnly   bool     // it writes no file, so a power cut undoes its ADD; see the function of that name
	Swept        bool     // the sweep undoes all that a DEL would; see Borrows
	Borrows      bool     // changes an interface that may go back to the host: swept only if that one is identified
	Capabilities []string // that it reads if its configuration declares them
	Concurrent   bool     // executables can run at the same time once the parts exist that containers share

	// Compared means that the built-in plugin compares an attachment with the kernel,
	// whoever has made it. Nothing compares other types: only their own CHECK can tell.
	Compared bool
	// Remakes are the kinds of parts, by their names in package contract, that a repair
	// makes again on the host, and RemakesInside those in the container, if asked to.
	// Of other parts it reports the differences.
	Remakes, RemakesInside []string
}

// table is never changed.
var table = map[string]Type{
	Bandwidth: {Capabilities: []string{"bandwidth"}, KernelOnly: true, Swept: true, Concurrent: true,
		Compared: true, Remakes: []string{"interface", "queue"}},
	Bridge: {Capabilities: []string{"mac"}, Makes: Veth, Rules: Masquerade, KernelOnly: true, Swept: true, Concurrent: true,
		Compared: true, Remakes: []string{"address", "bridge", "bridge port", "interface", "rule"}, RemakesInside: []string{"address", "interface", "route"}},
	Dummy: {Makes: Unswept, Concurrent: true},
	Firewall: {Rules: Forward, KernelOnly: true, Swept: true, Concurrent: true,
		Compared: true, Remakes: []string{"rule", "zone"}},
	Flannel: {Makes: Veth, Rules: Masquerade, Concurrent: true, Compared: true}, // as its default delegate; see Resolve
	HostDevice: {Capabilities: []string{"deviceID"}, Makes: Moved, KernelOnly: true, Borrows: true, Concurrent: true,
		Compared: true, RemakesInside: []string{"address", "interface", "route"}},
	HostLocal: {Capabilities: []string{"ips", "ipRanges"}, IPAM: true,
		Compared: true, Remakes: []string{"reservation"}},
	IPVLAN: {Makes: Stacked, Swept: true, Concurrent: true},
	Loopback: {Makes: Lo, KernelOnly: true, Swept: true, Concurrent: true,
		Compared: true, RemakesInside: []string{"interface"}},
	MACVLAN: {Capabilities: []string{"mac"}, Makes: Stacked, KernelOnly: true, Swept: true, Concurrent: true,
		Compared: true, RemakesInside: []string{"address", "interface", "route"}},
	Portmap: {Capabilities: []string{"portMappings"}, Rules: HostPorts, KernelOnly: true, Swept: true, Concurrent: true,
		Compared: true, Remakes: []string{"port", "sysctl"}},
	PTP: {Makes: Veth, Rules: Masquerade, KernelOnly: true, Swept: true, Concurrent: true,
		Compared: true, Remakes: []string{"address", "interface", "route", "rule"}, RemakesInside: []string{"address", "interface", "route"}},
	SBR: {Concurrent: true},
	Static: {Capabilities: []string{"ips"}, IPAM: true, KernelOnly: true,
		Compared: true},
	Tap: {Capabilities: []string{"mac"}, Makes: Unswept, Concurrent: true},
	Tuning: {Capabilities: []string{"mac"}, Swept: true, Borrows: true, Concurrent: true,
		Compared: true, RemakesInside: []string{"interface", "sysctl"}},
	VLAN: {Makes: Stacked, Concurrent: true},
}

// Known returns the description of a type, the zero Type if it is not known.
func Known(typ string) Type { return table[typ] }

// KernelOnly reports whether plugins and their IPAM plugins write no file, so that a
// power cut undoes their ADDs. is reports whether the plugin of a type is the built-in or
// the reference plugin.
func KernelOnly(plugins []*libcni.PluginConfig, is func(typ string) bool) bool {
	return !slices.ContainsFunc(plugins, func(p *libcni.PluginConfig) bool {
		ipam := p.Network.IPAM.Type
		return !Known(p.Network.Type).KernelOnly || !is(p.Network.Type) || ipam != "" && !(Known(ipam).KernelOnly && is(ipam))
	})
}

// ReadsCapability reports whether a plugin of a type, or its IPAM plugin, reads a
// capability that the plugin's configuration declares. The latter is run with the same
// configuration.
func ReadsCapability(typ, ipam, capability string) bool {
	return slices.Contains(table[typ].Capabilities, capability) || slices.Contains(table[ipam].Capabilities, capability)
}

// ReadersOf returns the types that read a capability, sorted.
func ReadersOf(capability string) (types []string) {
	for typ, t := range table {
		if slices.Contains(t.Capabilities, capability) {
			types = append(types, typ)
		}
	}
	slices.Sort(types)
	return types
}

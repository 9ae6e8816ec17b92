package leftovers

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/builtin/tuning"
	"github.com/embedcni/cni/internal/kernel/firewalld"
	"github.com/embedcni/cni/internal/kernel/netfilter"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/internal/store/ports"
	"github.com/embedcni/cni/internal/store/record"
)

// Footprint describes the possible leftovers of an attachment.
type Footprint struct {
	netfilter.Owner
	Addresses []netip.Addr // of the container, as far as they are known
	// Subnets are those whose packets the host forwards for the attachment's network.
	Subnets   []netip.Prefix
	Interface Interface
	Rules     Rules
	Zones     []string // of firewalld, in which the addresses may be
	Shaper    Shaper
	IPAMDirs  []string // host-local's directories of the network
	Backups   []string // files in which the plugin tuning keeps the interface's former settings
	Kept      []string // files in which flannel keeps the configuration of its delegate
}

// Interface is the attachment's interface.
type Interface struct {
	Made     bool    // it was made for the attachment, so that it may be deleted
	Dies     bool    // it ends with the attachment, so that no setting need be restored
	HostEnds []Link  // interfaces on the host that the result reports
	Device   *Device // its identity; nil if that is not known
	HostName string  // of the interface that host-device has moved; empty if there is none, or it is not known
}

// Link is an interface as a result reports it.
type Link struct{ Name, MAC string }

// Rules are the rules of the packet filter.
type Rules struct {
	Possible bool                 // a plugin of the chain makes some
	UDP      bool                 // a forwarded port may be one of UDP, so that there may be flows
	Ports    []netfilter.HostPort // that are forwarded
	AnyPort  bool                 // Ports may be incomplete
}

// Shaper is the device of the plugin bandwidth.
type Shaper struct {
	Possible bool // the plugin is in the chain
	Egress   bool // it may limit the packets from the container; the device is for nothing else
}

// Of derives the footprint of an attachment. A field that cannot be read may be set.
func Of(a *Attachment) Footprint {
	result := chain.Decode(a.Result)
	f := Footprint{Owner: a.Owner(), Addresses: contract.AddressesOf(result), IPAMDirs: IPAMDirs(a.List)}
	if a.sweepsDelegates() {
		f.Kept = a.Kept
	}
	if a.Has(conflist.Firewall) && !a.Ran.IsCallers(conflist.Firewall) || len(a.List.Plugins) == 0 {
		f.Subnets = netfilter.Subnets(contract.PrefixesOf(result))
	}
	var err error
	f.Rules.Ports, err = hostPorts(a.Params.CapabilityArgs[ports.Capability])
	f.Rules.AnyPort = err != nil
	f.addPlugins(a)
	f.Rules.Possible = f.Rules.Possible || len(a.Kept) > 0 // the lease may have asked for masquerading
	f.addInterface(a)
	if !a.Kernel.Rebooted { // an address that is in a zone after a reboot was added since
		f.Zones, _ = a.zones()
	}
	return f
}

// Widen adds everything that the reference plugins leave under names that can be
// computed, for an attachment whose configuration is lost.
func (f *Footprint) Widen() {
	f.Rules.Possible, f.Rules.UDP = true, true
	f.Shaper = Shaper{Possible: true, Egress: true}
	f.Zones = []string{firewalld.DefaultZone}
	f.IPAMDirs = []string{DefaultIPAMDir(f.Network)}
	f.Backups = []string{tuning.File(nil, f.ContainerID, f.IfName)}
	f.Kept = []string{filepath.Join(conflist.FlannelDir, f.ContainerID)}
}

// addPlugins adds the possible leftovers of the plugins. A field of a reference plugin's
// may have another type, and mean something else, to a plugin of the caller's with the
// same name.
func (f *Footprint) addPlugins(a *Attachment) {
	for i, p := range a.List.Plugins {
		var c struct {
			IPMasq      json.RawMessage `json:"ipMasq"`
			MACSpoofChk json.RawMessage `json:"macspoofchk"`
		}
		unread := json.Unmarshal(p.Bytes, &c) != nil
		switch typ := conflist.Known(p.Network.Type); typ.Rules {
		case conflist.Masquerade:
			f.Rules.Possible = f.Rules.Possible || unread || perhaps(c.IPMasq) || perhaps(c.MACSpoofChk)
		case conflist.HostPorts:
			f.Rules.Possible, f.Rules.UDP = true, !a.Recorded || f.Rules.AnyPort || slices.ContainsFunc(f.Rules.Ports, isUDP)
		case conflist.Forward:
			f.Rules.Possible = true
		}
		if i == 0 {
			f.Interface.Made = conflist.Known(p.Network.Type).Makes.IsOwned()
		}
		switch p.Network.Type {
		case conflist.Bandwidth:
			f.Shaper.Possible = true
		case conflist.Tuning:
			f.Backups = append(f.Backups, tuning.File(p.Bytes, a.Params.ContainerID, a.Params.IfName))
		}
	}
	f.Shaper.Egress = limitsEgress(a.List.Plugins, a.Params.CapabilityArgs["bandwidth"])
}

// addInterface adds the interface, by its identity and by the result of the ADD.
func (f *Footprint) addInterface(a *Attachment) {
	for _, i := range chain.Interfaces(a.Result, a.PrevResult) {
		if i.Sandbox == "" {
			f.Interface.HostEnds = append(f.Interface.HostEnds, Link{Name: i.Name, MAC: i.Mac})
		}
	}
	f.Interface.Dies = f.Interface.Made || a.Kernel.isOver() // a rebooted host has its devices as they were
	d := a.Kernel.Device()
	switch {
	case d == nil:
	case d.Settled:
		f.Interface.Made = false
	default:
		f.Interface.Device = d
	}
	if conflist.Known(a.first()).Makes != conflist.Moved {
		return
	}
	if d != nil {
		f.Interface.HostName = d.HostName
		return
	}
	var c struct {
		Device string `json:"device"`
	}
	if json.Unmarshal(a.List.Plugins[0].Bytes, &c) == nil {
		f.Interface.HostName = c.Device
	}
}

// hostPorts returns the ports of the capability portMappings.
func hostPorts(capability any) (all []netfilter.HostPort, err error) {
	mappings, err := ports.Mappings(capability)
	if err != nil {
		return nil, err
	}
	for _, m := range mappings {
		p := netfilter.HostPort{HostPort: m.HostPort, ContainerPort: m.ContainerPort, Protocol: cmp.Or(strings.ToLower(m.Protocol), "tcp")}
		if m.HostIP != "" {
			if p.HostIP, err = netip.ParseAddr(m.HostIP); err != nil {
				return nil, err
			}
		}
		if p.HostPort == 0 || p.ContainerPort == 0 || p.HostIP.Zone() != "" || !slices.Contains(ports.Protocols(), p.Protocol) {
			return nil, fmt.Errorf("port mapping %+v is not valid", m)
		}
		all = append(all, p)
	}
	return all, nil
}

// isUDP: to look for flows takes the kernel through the whole table of connections, which
// takes ten times as long as removing a container.
func isUDP(p netfilter.HostPort) bool { return p.Protocol == "udp" }

// perhaps reports whether a field may be set: it is true, or no boolean.
func perhaps(field json.RawMessage) bool {
	var set bool
	return field != nil && (json.Unmarshal(field, &set) != nil || set)
}

// readable reports whether JSON was read but for fields of another type, which
// encoding/json skips.
func readable(err error) bool {
	var other *json.UnmarshalTypeError
	return err == nil || errors.As(err, &other)
}

// hostLocalDir is where host-local keeps its addresses by default.
const hostLocalDir = "/var/lib/cni/networks"

// IPAMDirs returns the directories in which host-local keeps the addresses of a
// network, by its configuration.
func IPAMDirs(list *libcni.NetworkConfigList) (dirs []string) {
	list, _ = conflist.Resolve(list, "")
	for _, p := range list.Plugins {
		var c struct {
			IPAM struct {
				DataDir string `json:"dataDir"`
			} `json:"ipam"`
		}
		if p.Network.IPAM.Type != conflist.HostLocal || !readable(json.Unmarshal(p.Bytes, &c)) {
			continue
		}
		if dir := filepath.Join(cmp.Or(c.IPAM.DataDir, hostLocalDir), list.Name); !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// DefaultIPAMDir returns the directory in which host-local keeps the addresses of a
// network that is not configured otherwise.
func DefaultIPAMDir(network string) string { return filepath.Join(hostLocalDir, network) }

// Addresses returns the addresses in a recorded result.
func Addresses(result json.RawMessage) []netip.Addr {
	return contract.AddressesOf(chain.Decode(result))
}

// AddressesOf returns the addresses of recorded attachments, without those of the
// interfaces in except.
func AddressesOf(networks []record.Attachment, except map[string]bool) (all []netip.Addr) {
	for _, n := range networks {
		if n.State != record.Deleted && !except[n.IfName] {
			all = append(all, Addresses(n.Result)...)
		}
	}
	return all
}

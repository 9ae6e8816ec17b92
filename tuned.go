package cni

import (
	"encoding/json"
	"slices"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/builtin/tuning"
	"github.com/embedcni/cni/internal/known"
)

// aimBackups tells the sweep where the plugin tuning has kept what the interface
// had, and what the host calls the interface where that goes back there.
func (a *attachment) aimBackups(f *footprint) {
	plugins := a.network.config.Plugins
	f.Dies = f.OwnsIf || a.op.rebooted || a.op.hostGone // after a reboot the host has its devices as they were
	for _, p := range plugins {
		if p.Network.Type == known.Tuning {
			f.Backups = append(f.Backups, tuning.File(p.Bytes, a.ContainerID, a.IfName))
		}
	}
	if len(plugins) == 0 || known.Of(plugins[0].Network.Type).Makes != known.Moved {
		return
	}
	if d := a.device(); d != nil {
		f.HostName = d.HostName
		return
	}
	var c struct {
		Device string `json:"device"`
	}
	if json.Unmarshal(plugins[0].Bytes, &c) == nil {
		f.HostName = c.Device
	}
}

// has reports whether a plugin of that type is in the chain.
func (a *attachment) has(typ string) bool {
	return slices.ContainsFunc(a.network.config.Plugins, func(p *libcni.PluginConfig) bool { return p.Network.Type == typ })
}

// knowsInterface reports whether it is known what becomes of the interface: it
// goes with the attachment, or is one of the host's that can be found.
func (a *attachment) knowsInterface() bool {
	first := a.network.config.Plugins[0].Network.Type
	if a.isCallers(first) {
		return false
	}
	switch makes := known.Of(first).Makes; makes {
	case known.Moved:
		d := a.device()
		return a.op.rebooted || a.op.hostGone || d != nil && d.HostName != ""
	default:
		return makes == known.Lo || makes.IsOwned()
	}
}

package cni

import (
	"encoding/json"
	"slices"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/builtin/tuning"
)

// aimBackups tells the sweep where the plugin tuning has kept what the interface
// had, and what the host calls the interface where that goes back there.
func (a *attachment) aimBackups(f *footprint) {
	plugins := a.network.config.Plugins
	f.Dies = f.OwnsIf || a.op.rebooted || a.op.hostGone // after a reboot the host has its devices as they were
	for _, p := range plugins {
		if p.Network.Type == "tuning" {
			f.Backups = append(f.Backups, tuning.File(p.Bytes, a.ContainerID, a.IfName))
		}
	}
	if len(plugins) == 0 || plugins[0].Network.Type != "host-device" {
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

// knowsTuned reports whether the sweep can put back what tuning has changed, or
// need not, as the interface goes with the attachment.
func knowsTuned(attachments []*attachment) bool {
	return !slices.ContainsFunc(attachments, func(a *attachment) bool {
		plugins := a.network.config.Plugins
		tuned := slices.ContainsFunc(plugins, func(p *libcni.PluginConfig) bool { return p.Network.Type == "tuning" })
		return tuned && !a.knowsInterface()
	})
}

// knowsInterface reports whether it is known what becomes of the interface.
func (a *attachment) knowsInterface() bool {
	switch typ := a.network.config.Plugins[0].Network.Type; typ {
	case "loopback", "bridge", "ptp", "macvlan", "ipvlan", "vlan":
		return !a.op.isRegistered(typ)
	case "host-device":
		return !a.op.isRegistered(typ) && (a.op.rebooted || a.op.hostGone || a.device() != nil)
	}
	return false
}

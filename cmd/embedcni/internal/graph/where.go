package graph

import (
	"cmp"
	"encoding/json"

	"github.com/embedcni/cni"
)

// place is where the containers of a network are connected.
type place struct{ kind, bridge string }

// placeOf returns where a configuration connects containers: its first plugin makes the
// interface.
func placeOf(list *cni.NetworkConfList) place {
	for _, p := range list.Plugins {
		if p.Network == nil {
			continue
		}
		at := place{kind: p.Network.Type}
		if at.kind == "bridge" {
			var conf struct{ Bridge string }
			// The configuration was loaded, so it is valid.
			_ = json.Unmarshal([]byte(p.Source), &conf)
			at.bridge = cmp.Or(conf.Bridge, "cni0") // the plugin's default
		}
		return at
	}
	return place{}
}

// mains are the reference plugins that make interfaces.
var mains = []string{"bridge", "ptp", "macvlan", "ipvlan", "vlan", "host-device", "tap", "dummy", "loopback"}

// placeAt returns where a container is connected, by its record alone as far as that says:
// the network may be loaded with another bridge by now, or not at all. The bridge plugin
// reports the bridge, then the host's end, then the container's.
func (b *builder) placeAt(a cni.Attachment, r *cni.NetworkResult) (at place, hostIf string) {
	at = b.configured[a.Network]
	for _, main := range mains {
		if _, ok := a.Plugins[main]; ok {
			at.kind = main
			break
		}
	}
	var names []string
	if r != nil {
		for _, i := range r.Interfaces {
			if i.Sandbox == "" {
				names = append(names, i.Name)
			}
		}
	}
	if at.kind == "bridge" && len(names) > 0 {
		at.bridge, names = names[0], names[1:]
	}
	if at.kind != "bridge" {
		at.bridge = ""
	}
	if len(names) > 0 {
		hostIf = names[0]
	}
	return at, hostIf
}

package footprint

import (
	"cmp"
	"encoding/json"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/conflist"
	"github.com/embedcni/cni/internal/firewalld"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/internal/record"
)

// The plugin firewall adds a container's addresses to a zone of firewalld, if
// firewalld runs or the configuration names it as the backend. There is one
// firewalld for all network namespaces, and a zone does not record whose an address
// is.

// Zoned is an address in a zone of firewalld.
type Zoned struct {
	Zone string
	Addr netip.Addr
}

// Zoned returns the addresses with the zones that they may be in, without the
// addresses in except.
func (f *Footprint) Zoned(except []netip.Addr) (all []Zoned) {
	for _, zone := range f.Zones {
		for _, addr := range f.Addresses {
			if z := (Zoned{zone, addr}); !slices.Contains(except, addr) && !slices.Contains(all, z) {
				all = append(all, z)
			}
		}
	}
	return all
}

// zones returns the zones of firewalld that the attachment's plugins may have used.
// certain reports whether a plugin uses firewalld for certain, if its ADD got that
// far. An executable whose configuration names no backend does not report the one
// that it has chosen.
func (a *Attachment) zones() (zones []string, certain bool) {
	if a.IsCallers(known.Firewall) {
		return nil, false
	}
	ran, _ := a.Plugin(known.Firewall)
	return zonesOf(a.List.Plugins, ran)
}

// IsZoned reports whether a DEL certainly removes the addresses from a zone.
func (a *Attachment) IsZoned() bool {
	_, certain := a.zones()
	return certain
}

// maybeZoned reports whether a recorded attachment may have addresses in a zone.
func maybeZoned(n *record.Attachment) bool {
	list, err := conflist.Parse(n.Config)
	if err != nil {
		return true // unknown
	}
	var ran record.Plugin
	for _, p := range n.Plugins {
		if p.Type == known.Firewall {
			ran = p
		}
	}
	zones, _ := zonesOf(list.Plugins, ran)
	return len(zones) > 0
}

// zonesOf is zones for plugins with these configurations. ran is the record of the
// plugin firewall.
func zonesOf(plugins []*libcni.PluginConfig, ran record.Plugin) (zones []string, certain bool) {
	for _, p := range plugins {
		var c struct {
			Backend json.RawMessage `json:"backend"`
			Zone    json.RawMessage `json:"firewalldZone"`
		}
		if p.Network.Type != known.Firewall || json.Unmarshal(p.Bytes, &c) != nil {
			continue
		}
		used := false // for certain
		switch backend := text(c.Backend); {
		case backend == "iptables":
			continue
		case backend == "firewalld":
			used = true
		case ran.Kind == record.KindBuiltIn && ran.Backend != "":
			if used = ran.Backend == netfilter.DetectedFirewalld; !used {
				continue
			}
		}
		zones = append(zones, cmp.Or(text(c.Zone), firewalld.DefaultZone))
		certain = certain || used
	}
	return zones, certain
}

// text returns the value of a field that is a string, and else "".
func text(field json.RawMessage) string {
	var s string
	if json.Unmarshal(field, &s) != nil {
		return "" // the plugin refuses it
	}
	return s
}

// Package warm decides for a pool, which attaches containers ahead of time: how
// far a network can be attached without a caller, whether an attachment is
// unchanged, and which containers to remove when their process is dead.
package warm

import (
	"errors"
	"fmt"
	"slices"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/firewalld"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/netns"
)

// Reasons not to use a container that was made ahead of time.
var (
	ErrUnfit = errors.New("does not fit") // or its fit is unknown
	ErrDead  = errors.New("made ahead of time, and dead since")
)

// Place is the place of an attachment, and the means to read its state.
type Place struct {
	Host      *hostns.NetNS
	Container *netns.Handle
	Filters   netfilter.Options
	Firewalld *firewalld.Bus
}

// Ahead returns how many plugins of a network, from the first, need nothing from
// a caller, unless he gives a capability that they declare; see Asked. registered reports whether the program has registered a plugin for a
// type.
func Ahead(plugins []*libcni.PluginConfig, registered func(typ string) bool) int {
	poolable := func(typ string) bool { return typ == "" || known.Of(typ).Poolable && !registered(typ) }
	for i, p := range plugins {
		if !poolable(p.Network.Type) || !poolable(p.Network.IPAM.Type) {
			return i
		}
		for name := range p.Network.Capabilities {
			if !known.ReadsCapability(p.Network.Type, p.Network.IPAM.Type, name) {
				return i
			}
		}
	}
	return len(plugins)
}

// Asked reports whether a call gives one of the plugins a capability that it declares, such
// as an address. Then they cannot have run ahead of it.
func Asked[V any](plugins []*libcni.PluginConfig, given map[string]V) bool {
	return slices.ContainsFunc(plugins, func(p *libcni.PluginConfig) bool {
		for name := range given {
			if p.Network.Capabilities[name] {
				return true
			}
		}
		return false
	})
}

// CanWait reports whether a call's arguments may arrive after the first plugins
// have run. DEL gives the arguments to those plugins as well, and a plugin that
// reads CNI_ARGS refuses unknown ones unless IgnoreUnknown is set.
func CanWait(args [][2]string, configArgs map[string]any) bool {
	ignored := len(args) == 0
	for _, arg := range args {
		if known.ReadsArg(arg[0]) {
			return false
		}
		ignored = ignored || arg[0] == "IgnoreUnknown" && (arg[1] == "1" || arg[1] == "true")
	}
	for key := range configArgs {
		if known.ReadsArg(key) {
			return false
		}
	}
	return ignored
}

// Ran returns the plugins of recorded that have run if the ADD of these plugins has
// run. The others are chosen when they run.
func Ran(plugins []*libcni.PluginConfig, recorded []record.Plugin) []record.Plugin {
	return slices.DeleteFunc(recorded, func(p record.Plugin) bool {
		return !slices.ContainsFunc(plugins, func(c *libcni.PluginConfig) bool {
			return p.Type == c.Network.Type || p.Type == c.Network.IPAM.Type
		})
	})
}

// Taken returns the IDs of containers that were made ahead of time and have
// since been taken under another ID.
func Taken(found []record.Found) map[record.PluginID]bool {
	taken := map[record.PluginID]bool{}
	for _, f := range found {
		if f.Record.PluginID != "" {
			taken[f.Record.PluginID] = true
		}
	}
	return taken
}

// Orphans removes from the list the containers that the pool of a live process
// has made ahead of time: that pool removes them, unless a removal has failed.
// alive reports whether the process of a record lives.
//
// stale are containers that were taken under another ID by a process that was
// killed between two steps: only their records are left. If a record names no
// container, it may belong to any of them; then all stay, with an error.
func Orphans(found []record.Found, alive func(*record.Record) (bool, error)) (rest []record.Found, stale []record.ID) {
	taken := Taken(found)
	nameless := slices.IndexFunc(found, func(f record.Found) bool { return f.Record.ContainerID == "" })
	for _, f := range found {
		if !f.Record.Warm {
			rest = append(rest, f)
			continue
		}
		lives, err := alive(f.Record)
		switch {
		case err != nil:
			f.Err = errors.Join(f.Err, err)
		case lives && !failed(f.Record):
			continue
		case f.Err != nil:
		case taken[f.Record.Plugins()]:
			stale = append(stale, f.Record.ContainerID)
			continue
		case nameless >= 0:
			f.Err = fmt.Errorf("it may be another container's by now: %v", found[nameless].Err)
		}
		rest = append(rest, f)
	}
	return rest, stale
}

// failed reports whether removing the container has failed.
func failed(rec *record.Record) bool {
	return slices.ContainsFunc(rec.Attachments, func(n record.Attachment) bool { return n.Failures > 0 })
}

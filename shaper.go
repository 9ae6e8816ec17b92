package cni

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/conflist"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/sweep"
)

// mayUnshape reports whether the DEL of the plugin bandwidth can be run. It
// deletes a device by a name that other interfaces of the container share, and so
// do some of other containers.
func (a *attachment) mayUnshape(ctx context.Context) (bool, error) {
	f, err := a.footprint()
	if err != nil || f.Host == nil {
		return err == nil, err
	}
	defer f.close()
	others, err := sweep.NotItsShaper(ctx, f.Target)
	if others {
		a.op.logger.Debug("DEL of bandwidth is left to the sweep: the device may be another attachment's",
			"container", a.op.id, "interface", a.IfName)
	}
	return err == nil && !others, err
}

// limitsEgress reports whether the plugin bandwidth, which makes a device for
// nothing else, limits what the container sends.
func limitsEgress(plugins []*libcni.PluginConfig, capabilities map[string]any) bool {
	for _, p := range plugins {
		if p.Network.Type != known.Bandwidth {
			continue
		}
		var own, given bandwidthLimits
		if json.Unmarshal(p.Bytes, &own) != nil {
			return true // nobody knows
		}
		if own == (bandwidthLimits{}) {
			data, err := json.Marshal(capabilities[capBandwidth])
			if err != nil || json.Unmarshal(data, &given) != nil {
				return true
			}
			own = given
		}
		if own.EgressRate != nil && string(*own.EgressRate) != "0" {
			return true
		}
	}
	return false
}

// bandwidthLimits are those of a configuration, or of the capability. The former
// count if there are any.
type bandwidthLimits struct {
	IngressRate  *json.RawMessage `json:"ingressRate"`
	IngressBurst *json.RawMessage `json:"ingressBurst"`
	EgressRate   *json.RawMessage `json:"egressRate"`
	EgressBurst  *json.RawMessage `json:"egressBurst"`
}

// othersShaper is [sweep.Target.OthersShaper]. Attachments that go in the same
// call are no others.
func (a *attachment) othersShaper(name, mac string) (bool, error) {
	found, err := a.op.records.List()
	if err != nil {
		return false, err
	}
	for _, f := range found {
		id := f.Record.ContainerID
		if id != a.op.id && record.PluginID(id) == a.op.pluginID() {
			continue // this container, made ahead of time
		}
		for _, n := range f.Record.Networks {
			going := id == a.op.id && (n.IfName == a.IfName || a.op.leaving[n.IfName])
			if !going && n.State != record.Deleted && mayHaveMade(string(f.Record.Plugins()), n, name, mac) {
				return true, nil
			}
		}
	}
	return false, nil
}

// mayHaveMade reports whether an attachment has made the device, or cannot be
// told from one that has: its ADD has not said so yet.
func mayHaveMade(id string, n record.Network, name, mac string) bool {
	if made := shaperIn(decodeResult(n.Result), id, n); made != nil {
		return made.Name == name && strings.EqualFold(made.Mac, mac)
	}
	if sweep.ShaperName(n.Name, id) != name {
		return false
	}
	list, err := conflist.Parse(n.Config)
	if err != nil {
		return true
	}
	return limitsEgress(list.Plugins, anyMap(n.Capabilities))
}

// shaperIn is the device that a result says the plugin bandwidth has made.
func shaperIn(result *types100.Result, id string, n record.Network) *types100.Interface {
	if result == nil {
		return nil
	}
	for _, i := range result.Interfaces {
		if i.Sandbox == "" && (i.Name == sweep.ShaperName(n.Name, id) || i.Name == sweep.OwnShaperName(n.Name, id, n.IfName)) {
			return i
		}
	}
	return nil
}

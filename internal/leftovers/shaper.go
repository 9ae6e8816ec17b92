package leftovers

import (
	"encoding/json"
	"strings"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/builtin/bandwidth"
	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/conflist"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/record"
)

// limits are the limits in a configuration of the plugin bandwidth, or in the
// capability. The former win if there are any.
type limits struct {
	IngressRate  *json.RawMessage `json:"ingressRate"`
	IngressBurst *json.RawMessage `json:"ingressBurst"`
	EgressRate   *json.RawMessage `json:"egressRate"`
	EgressBurst  *json.RawMessage `json:"egressBurst"`
}

// limitsEgress reports whether the plugin bandwidth may limit the packets from the
// container. It makes a device for nothing else.
func limitsEgress[V any](plugins []*libcni.PluginConfig, capabilities map[string]V) bool {
	for _, p := range plugins {
		if p.Network.Type != known.Bandwidth {
			continue
		}
		var l limits
		if json.Unmarshal(p.Bytes, &l) != nil {
			return true
		}
		if l == (limits{}) {
			data, err := json.Marshal(capabilities["bandwidth"])
			if err != nil || json.Unmarshal(data, &l) != nil {
				return true
			}
		}
		if l.EgressRate != nil && string(*l.EgressRate) != "0" {
			return true
		}
	}
	return false
}

// mayHaveShaped reports whether a recorded attachment of a container has made a
// device of bandwidth's, or cannot be told from one that has: its ADD has not said so
// yet.
func mayHaveShaped(id string, n record.Attachment, name, mac string) bool {
	shared := bandwidth.Device(n.Network, id)
	if result := chain.Decode(n.Result); result != nil {
		for _, i := range result.Interfaces {
			if i.Sandbox == "" && (i.Name == shared || i.Name == bandwidth.OwnDevice(n.Network, id, n.IfName)) {
				return i.Name == name && strings.EqualFold(i.Mac, mac)
			}
		}
	}
	if shared != name {
		return false
	}
	list, err := conflist.Parse(n.Config)
	return err != nil || limitsEgress(list.Plugins, n.Capabilities)
}

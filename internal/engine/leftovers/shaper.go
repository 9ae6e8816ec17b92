package leftovers

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/builtin/bandwidth"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/internal/store/record"
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
func limitsEgress(plugins []*libcni.PluginConfig, capability any) bool {
	return slices.ContainsFunc(plugins, func(p *libcni.PluginConfig) bool {
		if p.Network.Type != conflist.Bandwidth {
			return false
		}
		var l limits
		err := json.Unmarshal(p.Bytes, &l)
		if err == nil && l == (limits{}) {
			var data []byte
			if data, err = json.Marshal(capability); err == nil {
				err = json.Unmarshal(data, &l)
			}
		}
		return err != nil || l.EgressRate != nil && string(*l.EgressRate) != "0"
	})
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
	return err != nil || limitsEgress(list.Plugins, n.Capabilities["bandwidth"])
}

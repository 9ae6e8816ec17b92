package engine

import (
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/expect"
)

// portsOn returns an attachment to a network whose plugin forwards ports.
func portsOn(network string, mappings ...Mapping) *attachment {
	a := &attachment{plan: Planned{Network: &Network{Config: &libcni.NetworkConfigList{Name: network, Plugins: []*libcni.PluginConfig{
		{Network: &types.PluginConf{Capabilities: map[string]bool{CapPortMappings: true}}}}}}}}
	if mappings != nil {
		a.plan.CapabilityArgs = map[string]any{CapPortMappings: wire(mappings...)}
	}
	return a
}

func wire(mappings ...Mapping) []Mapping {
	all, err := ValidMappings(mappings)
	if err != nil {
		panic(err)
	}
	return all
}

// TestNetworksWithOnePortAreAttachedInOrder, so that the first forwards it. Others are
// attached in parallel.
func TestNetworksWithOnePortAreAttachedInOrder(t *testing.T) {
	web, dns := Mapping{HostPort: 80, ContainerPort: 1}, Mapping{HostPort: 53, ContainerPort: 2, Protocol: "udp"}
	local := Mapping{HostPort: 80, ContainerPort: 3, HostIP: "127.0.0.1"}
	for _, tt := range []struct {
		what string
		all  attachments
		want [][]int
	}{
		{"no ports", attachments{portsOn("a"), portsOn("b"), portsOn("a")}, [][]int{{1}, {0, 2}}},
		{"different ports", attachments{portsOn("a", web), portsOn("b", dns)}, [][]int{{0}, {1}}},
		{"one port", attachments{portsOn("a", web), portsOn("b"), portsOn("c", dns, local)}, [][]int{{1}, {0, 2}}},
		{"one that joins two", attachments{portsOn("a", web), portsOn("b", dns), portsOn("c", web, dns)}, [][]int{{0, 1, 2}}},
	} {
		expect.Same(t, tt.what, tt.all.groups(false), tt.want)
		var all []int
		for i := range tt.all {
			all = append(all, i)
		}
		expect.Same(t, tt.what+", serially", tt.all.groups(true), [][]int{all})
	}
}

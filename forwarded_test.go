package cni

import (
	"fmt"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/expect"
)

// portsOn returns an attachment to a network whose plugin forwards ports.
func portsOn(network string, mappings ...PortMapping) *attachment {
	a := &attachment{network: &Network{config: &libcni.NetworkConfigList{Name: network, Plugins: []*libcni.PluginConfig{
		{Network: &types.PluginConf{Capabilities: map[string]bool{capPortMappings: true}}}}}}}
	if mappings != nil {
		a.CapabilityArgs = map[string]any{capPortMappings: wire(mappings...)}
	}
	return a
}

func wire(mappings ...PortMapping) []wirePort {
	all, err := wirePorts(mappings)
	if err != nil {
		panic(err)
	}
	return all
}

// TestNetworksWithOnePortAreAttachedInOrder, so that the first forwards it. Others are
// attached in parallel.
func TestNetworksWithOnePortAreAttachedInOrder(t *testing.T) {
	web, dns := PortMapping{HostPort: 80, ContainerPort: 1}, PortMapping{HostPort: 53, ContainerPort: 2, Protocol: "udp"}
	local := PortMapping{HostPort: 80, ContainerPort: 3, HostIP: "127.0.0.1"}
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

func TestPortsAreForwardedToTheFirstNetworkOfAFamily(t *testing.T) {
	addresses := func(ips ...string) string {
		text := `{"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": "/ns"}, {"name": "br0"}], "ips": [{"address": "192.0.2.9/24", "interface": 1}`
		for _, ip := range ips {
			text += fmt.Sprintf(`, {"address": %q, "interface": 0}`, ip)
		}
		return text + `]}`
	}
	both, four, six, none := addresses("10.1.0.2/24", "fd00::2/64"), addresses("10.2.0.2/24"), addresses("fd01::2/64"), addresses()
	web := PortMapping{HostPort: 80, ContainerPort: 1, Protocol: "tcp"}
	at := func(ip string) PortMapping { m := web; m.HostIP = ip; return m }
	type asked struct {
		result string
		ports  []PortMapping
	}
	for what, tt := range map[string]struct {
		all  []asked
		want [][]PortMapping
	}{
		"one":                          {[]asked{{both, []PortMapping{web}}}, [][]PortMapping{{web}}},
		"two":                          {[]asked{{both, []PortMapping{web}}, {both, []PortMapping{web}}}, [][]PortMapping{{web}, nil}},
		"a family each":                {[]asked{{four, []PortMapping{web}}, {six, []PortMapping{web}}}, [][]PortMapping{{web}, {web}}},
		"the second family is left":    {[]asked{{four, []PortMapping{web}}, {both, []PortMapping{web}}, {six, []PortMapping{web}}}, [][]PortMapping{{web}, {web}, nil}},
		"without an address":           {[]asked{{none, []PortMapping{web}}, {four, []PortMapping{web}}}, [][]PortMapping{nil, {web}}},
		"an address of another family": {[]asked{{four, []PortMapping{at("::1")}}, {six, []PortMapping{at("::1")}}}, [][]PortMapping{nil, {at("::1")}}},
		"within all":                   {[]asked{{four, []PortMapping{web}}, {four, []PortMapping{at("127.0.0.1")}}}, [][]PortMapping{{web}, nil}},
		"all but one":                  {[]asked{{four, []PortMapping{at("127.0.0.1")}}, {four, []PortMapping{web}}}, [][]PortMapping{{at("127.0.0.1")}, {web}}},
		"not asked":                    {[]asked{{four, nil}, {four, []PortMapping{web}}}, [][]PortMapping{nil, {web}}},
	} {
		var sources []source
		for i, a := range tt.all {
			sources = append(sources, source{network: fmt.Sprint("n", i), ifName: "eth0", result: raw(t, a.result), ports: a.ports})
		}
		expect.Same(t, what, forwardedTo(sources), tt.want)
	}
}

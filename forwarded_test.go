package cni

import (
	"fmt"
	"testing"

	"github.com/embedcni/cni/internal/engine/engine"
	"github.com/embedcni/cni/internal/expect"
)

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
		var sources []engine.Source
		for i, a := range tt.all {
			sources = append(sources, engine.Source{Network: fmt.Sprint("n", i), IfName: "eth0", Result: raw(t, a.result), Ports: wireMappings(a.ports)})
		}
		var got [][]PortMapping
		for _, forwarded := range forwardedTo(sources) {
			got = append(got, asMappings(forwarded))
		}
		expect.Same(t, what, got, tt.want)
	}
}

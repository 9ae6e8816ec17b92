package main

import (
	"encoding/json"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

func TestConflist(t *testing.T) {
	const ipam4 = `"ipam":{"type":"host-local","dataDir":"/d","ranges":[[{"subnet":"10.102.0.0/16"}]]}`
	for name, tt := range map[string]struct {
		work    work
		backend string
		want    string
	}{
		"bridge": {workBridge, "", `[{"type":"bridge","bridge":"bench2","isDefaultGateway":true,` + ipam4 + `}]`},
		"nat": {workNAT, nftables, `[{"type":"bridge","bridge":"bench2","isDefaultGateway":true,"ipMasq":true,"ipMasqBackend":"nftables",` + ipam4 + `},
			{"type":"portmap","backend":"nftables","capabilities":{"portMappings":true}}]`},
		"nat, no backend named": {workNAT, native, `[{"type":"bridge","bridge":"bench2","isDefaultGateway":true,"ipMasq":true,` + ipam4 + `},
			{"type":"portmap","capabilities":{"portMappings":true}}]`},
		"default": {workDefault, "", `[{"type":"bridge","bridge":"bench2","isGateway":true,"ipMasq":true,"hairpinMode":true,
			"ipam":{"type":"host-local","dataDir":"/d","ranges":[[{"subnet":"10.102.0.0/16"}]],"routes":[{"dst":"0.0.0.0/0"}]}},
			{"type":"portmap","capabilities":{"portMappings":true}},{"type":"firewall"},{"type":"tuning"}]`},
	} {
		got := expect.Value(conflist(tt.work, tt.backend, 2, "/d"))(t)
		wantJSON(t, name, got, `{"cniVersion":"1.0.0","name":"bench2","plugins":`+tt.want+`}`)
	}
}

func TestNetavarkGetsAddressesOfItsNetwork(t *testing.T) {
	got := expect.Value(netavarkConfig(container{ID: "c", Network: 1, N: 256, Ports: []uint16{8000}}))(t)
	var config struct {
		Networks map[string]struct {
			IPs []string `json:"static_ips"`
		}
		Info map[string]struct {
			Subnets []map[string]string
		} `json:"network_info"`
	}
	expect.NoError(t, json.Unmarshal(got, &config))
	expect.Same(t, "addresses", config.Networks["bench1"].IPs, []string{"10.101.1.2"})
	want := []map[string]string{{"subnet": "10.101.0.0/16", "gateway": "10.101.0.1"}}
	expect.Same(t, "subnets", config.Info["bench1"].Subnets, want)
}

func wantJSON(t *testing.T, name string, got []byte, want string) {
	t.Helper()
	var a, b any
	expect.NoError(t, json.Unmarshal(got, &a))
	expect.NoError(t, json.Unmarshal([]byte(want), &b))
	expect.Same(t, name, a, b)
}

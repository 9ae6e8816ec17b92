package veth

import (
	"encoding/json"
	"net"
	"net/netip"
	"reflect"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/plugin"
)

func mustLoad(t *testing.T, conf, args string) *bridgeConfig {
	t.Helper()
	c, err := loadBridge(&plugin.Request{Type: "bridge", Config: json.RawMessage(conf), Args: args})
	if err != nil {
		t.Fatalf("%s: %v", conf, err)
	}
	return c
}

func TestVLANs(t *testing.T) {
	tests := map[string]struct {
		conf string
		want []links.VLAN
	}{
		"none":        {`{}`, nil},
		"access":      {`{"vlan": 7}`, []links.VLAN{{ID: 7, Access: true}}},
		"trunk":       {`{"vlanTrunk": [{"id": 9}, {"minID": 3, "maxID": 5}, {"id": 4}]}`, []links.VLAN{{ID: 3}, {ID: 4}, {ID: 5}, {ID: 9}, {ID: 1, Access: true}}},
		"both":        {`{"vlan": 7, "vlanTrunk": [{"minID": 3, "maxID": 3, "id": 2}]}`, []links.VLAN{{ID: 7, Access: true}, {ID: 2}, {ID: 3}}},
		"empty trunk": {`{"vlanTrunk": []}`, nil},
	}
	for name, test := range tests {
		expect.Same(t, name, mustLoad(t, test.conf, "").port.vlans(), test.want)
	}
}

func TestFiltersVLANs(t *testing.T) {
	for conf, want := range map[string]bool{
		`{}`: false, `{"vlan": 7}`: true, `{"vlanTrunk": []}`: true, `{"preserveDefaultVlan": true}`: false,
	} {
		expect.Same(t, conf, mustLoad(t, conf, "").port.filtersVLANs(), want)
	}
}

func TestMACIsTheNearestOne(t *testing.T) {
	const runtime, args = `"runtimeConfig": {"mac": "02:00:00:00:00:01"}`, `"args": {"cni": {"mac": "02:00:00:00:00:02"}}`
	tests := map[string]struct{ conf, args, want string }{
		"none":     {`{}`, "", ""},
		"CNI_ARGS": {`{}`, "MAC=02:00:00:00:00:03", "02:00:00:00:00:03"},
		"args":     {`{` + args + `}`, "MAC=02:00:00:00:00:03", "02:00:00:00:00:02"},
		"runtime":  {`{` + args + `,` + runtime + `}`, "MAC=02:00:00:00:00:03", "02:00:00:00:00:01"},
	}
	for name, test := range tests {
		expect.Same(t, name, mustLoad(t, test.conf, test.args).mac.String(), test.want)
	}
}

func TestDefaultsOfTheConfiguration(t *testing.T) {
	got := mustLoad(t, `{"isDefaultGateway": true}`, "")
	want := &bridgeConfig{Bridge: "cni0", IsDefaultGateway: true, IsGateway: true}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func ipConfig(address, gateway string) *types100.IPConfig {
	ip, n, err := net.ParseCIDR(address)
	if err != nil {
		panic(err)
	}
	return &types100.IPConfig{Address: net.IPNet{IP: ip, Mask: n.Mask}, Gateway: net.ParseIP(gateway)}
}

func TestSetGateways(t *testing.T) {
	v4Default := &types.Route{Dst: net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}}
	tests := map[string]struct {
		conf   bridgeConfig
		in     types100.Result
		bridge []string
		want   string // as JSON
	}{
		"no gateway": {
			bridgeConfig{}, types100.Result{IPs: []*types100.IPConfig{ipConfig("10.1.0.9/24", "")}}, nil,
			`{"ips":[{"interface":2,"address":"10.1.0.9/24"}]}`,
		},
		"the first address": {
			bridgeConfig{IsGateway: true},
			types100.Result{IPs: []*types100.IPConfig{ipConfig("10.1.0.9/24", ""), ipConfig("fd00::9/64", "")}},
			[]string{"10.1.0.1/24", "fd00::1/64"},
			`{"ips":[{"interface":2,"address":"10.1.0.9/24","gateway":"10.1.0.1"},{"interface":2,"address":"fd00::9/64","gateway":"fd00::1"}]}`,
		},
		"a default route for each family": {
			bridgeConfig{IsGateway: true, IsDefaultGateway: true},
			types100.Result{IPs: []*types100.IPConfig{ipConfig("10.1.0.9/24", "10.1.0.7"), ipConfig("10.2.0.9/24", ""), ipConfig("fd00::9/64", "")}},
			[]string{"10.1.0.7/24", "10.2.0.1/24", "fd00::1/64"},
			`{"ips":[{"interface":2,"address":"10.1.0.9/24","gateway":"10.1.0.7"},{"interface":2,"address":"10.2.0.9/24","gateway":"10.2.0.1"},{"interface":2,"address":"fd00::9/64","gateway":"fd00::1"}],` +
				`"routes":[{"dst":"0.0.0.0/0","gw":"10.1.0.7"},{"dst":"::/0","gw":"fd00::1"}]}`,
		},
		"a default route that is there": {
			bridgeConfig{IsGateway: true, IsDefaultGateway: true},
			types100.Result{IPs: []*types100.IPConfig{ipConfig("10.1.0.9/24", "")}, Routes: []*types.Route{v4Default}},
			[]string{"10.1.0.1/24"},
			`{"ips":[{"interface":2,"address":"10.1.0.9/24","gateway":"10.1.0.1"}],"routes":[{"dst":"0.0.0.0/0"}]}`,
		},
	}
	for name, test := range tests {
		bridge, err := test.conf.setGateways(&test.in)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var texts []string
		for _, b := range bridge {
			texts = append(texts, b.String())
		}
		expect.Same(t, name+": bridge", texts, test.bridge)
		got, err := json.Marshal(&test.in)
		expect.NoError(t, err)
		var a, b any
		if json.Unmarshal(got, &a) != nil || json.Unmarshal([]byte(test.want), &b) != nil || !reflect.DeepEqual(a, b) {
			t.Errorf("%s:\ngot  %s\nwant %s", name, got, test.want)
		}
	}
}

func TestSetGatewaysWithoutRoomForOne(t *testing.T) {
	c := bridgeConfig{IsGateway: true}
	_, err := c.setGateways(&types100.Result{IPs: []*types100.IPConfig{ipConfig("255.255.255.255/32", "")}})
	if want := `"isGateway": there is no address for the gateway of 255.255.255.255/32`; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestConflicts(t *testing.T) {
	tests := []struct {
		have    []string
		want    string
		present bool
		others  []string
	}{
		{nil, "10.1.0.1/24", false, nil},
		{[]string{"10.1.0.1/24"}, "10.1.0.1/24", true, nil},
		{[]string{"10.1.0.1/25"}, "10.1.0.1/24", false, []string{"10.1.0.1/25"}},
		{[]string{"10.2.0.1/24", "fd00::1/64"}, "10.1.0.1/24", false, []string{"10.2.0.1/24"}},
		{[]string{"10.2.0.1/24", "10.1.0.1/24"}, "10.1.0.1/24", true, nil},
		{[]string{"10.2.0.1/24", "fd00:2::1/64"}, "fd00:1::1/64", false, nil},
		{[]string{"fd00:1::2/64"}, "fd00:1::1/64", false, []string{"fd00:1::2/64"}},
		{[]string{"fd00:1::2/48"}, "fd00:1:0:5::1/64", false, []string{"fd00:1::2/48"}},
	}
	for _, test := range tests {
		var have []links.Address
		for _, h := range test.have {
			have = append(have, links.Address{Prefix: netip.MustParsePrefix(h)})
		}
		present, others := conflicts(have, netip.MustParsePrefix(test.want))
		var texts []string
		for _, o := range others {
			texts = append(texts, o.String())
		}
		if present != test.present || !reflect.DeepEqual(texts, test.others) {
			t.Errorf("%v and %s: got %t, %v", test.have, test.want, present, texts)
		}
	}
}

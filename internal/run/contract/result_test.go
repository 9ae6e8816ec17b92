package contract

import (
	"encoding/json"
	"net"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/plugin"
)

func request(t *testing.T, result string) *plugin.Request {
	t.Helper()
	r := &plugin.Request{IfName: "eth0", NetNS: "/run/netns/c1", PrevResult: &types100.Result{}}
	expect.NoError(t, json.Unmarshal([]byte(result), r.PrevResult))
	return r
}

func TestReported(t *testing.T) {
	for name, test := range map[string]struct{ interfaces, want string }{
		"as it was":                   {`{"name": "eth0"}, {"name": "eth0", "mac": "1", "sandbox": "/run/netns/c1"}`, "1"},
		"null beside it":              {`null, {"name": "eth0", "mac": "1", "sandbox": "/run/netns/c1"}`, "1"},
		"by another path":             {`{"name": "eth0", "mac": "1", "sandbox": "/var/run/netns/c1"}`, "1"},
		"the same name in another":    {`{"name": "eth0", "mac": "1", "sandbox": "/vm"}, {"name": "eth0", "mac": "2", "sandbox": "/run/netns/c1"}`, "2"},
		"the same name in two others": {`{"name": "eth0", "mac": "1", "sandbox": "/vm"}, {"name": "eth0", "mac": "2", "sandbox": "/vm2"}`, ""},
		"the host's":                  {`{"name": "eth0"}`, ""},
		"of another name":             {`{"name": "eth1", "sandbox": "/run/netns/c1"}`, ""},
	} {
		i, err := Reported(request(t, `{"cniVersion": "1.0.0", "interfaces": [`+test.interfaces+`]}`))
		expect.That(t, (err == nil) == (test.want != "") && (err != nil || i.Mac == test.want),
			"%s: got %v, %v, want the MAC address %q", name, i, err, test.want)
	}
	expect.Fails(t, "found an interface without a result", expect.Err(Reported(&plugin.Request{IfName: "eth0"})))
}

// TestFault_F37_CheckWantsTheAddressesOfALaterPlugin: a later plugin's
// addresses on its own interface concern neither this plugin nor its rules.
func TestFault_F37_CheckWantsTheAddressesOfALaterPlugin(t *testing.T) {
	r := request(t, `{"cniVersion": "1.0.0", "interfaces": [{"name": "eth0"}, {"name": "eth0", "sandbox": "/ns"}, {"name": "wg0", "sandbox": "/ns"}],
		"ips": [{"address": "10.1.0.2/24", "interface": 1}, {"address": "10.9.0.2/24", "interface": 2}, {"address": "10.9.0.3/24", "interface": 0},
			{"address": "10.9.0.4/24", "interface": 7}, {"address": "10.1.0.3/24"}]}`)
	var got []string
	for _, ip := range OwnResult(r).IPs {
		got = append(got, ip.Address.String())
	}
	want := "10.1.0.2/24 10.1.0.3/24"
	expect.That(t, strings.Join(got, " ") == want, "got %v, want %s", got, want)
	expect.That(t, len(r.PrevResult.IPs) == 5, "the result has changed")
}

func TestSameMAC(t *testing.T) {
	has := net.HardwareAddr{0x0a, 0x58, 0x0a, 0x01, 0x00, 0x02}
	for said, want := range map[string]bool{
		"": true, "0a:58:0a:01:00:02": true, "0A:58:0A:01:00:02": true, "0a-58-0a-01-00-02": true, "0a58.0a01.0002": true,
		"0a:58:0a:01:00:03": false, "none": false,
	} {
		expect.Same(t, said, SameMAC(said, has), want)
	}
	expect.That(t, SameMAC("c0:00:02:01", net.HardwareAddr{0xc0, 0, 2, 1}), "the address of a tunnel is not the same as itself")
}

package multus

import (
	"net/http"
	"os"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/thick/multinet"
)

// results are results of a plugin, by the file of testdata that has the network status
// that Multus writes about them.
var results = map[string]string{
	"bridge": `{"cniVersion": "1.1.0",
		"interfaces": [{"name": "br0", "mac": "02:00:00:00:00:01"}, {"name": "veth1"}, {"name": "eth0", "mac": "02:00:00:00:00:02", "mtu": 1450, "sandbox": "/run/netns/pod1"}],
		"ips": [{"interface": 2, "address": "10.9.0.2/24", "gateway": "10.9.0.1"}, {"interface": 2, "address": "fd00::2/64", "gateway": "fd00::1"}],
		"routes": [{"dst": "0.0.0.0/0", "gw": "10.9.0.1"}, {"dst": "::/0", "gw": "fd00::1"}, {"dst": "10.0.0.0/8"}],
		"dns": {"nameservers": ["10.9.0.53"], "domain": "example", "search": ["a.example"], "options": ["ndots:5"]}}`,
	"several": `{"cniVersion": "1.1.0",
		"interfaces": [{"name": "eth0", "sandbox": "/run/netns/pod1"}, {"name": "host"}, {"name": "eth9", "sandbox": "/run/netns/pod1"}],
		"ips": [{"interface": 0, "address": "10.9.0.2/24"}, {"interface": 2, "address": "10.8.0.2/24", "gateway": "10.8.0.1"}, {"interface": 1, "address": "10.7.0.2/24"}]}`,
	"unassigned": `{"cniVersion": "1.1.0",
		"interfaces": [{"name": "eth0", "sandbox": "/run/netns/pod1"}, {"name": "eth9", "sandbox": "/run/netns/pod1"}],
		"ips": [{"address": "10.9.0.2/24"}]}`,
	"one": `{"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": "/run/netns/pod1"}], "ips": [{"address": "10.9.0.2/24"}]}`,
}

// statusFile is the file with the network status for a result.
func statusFile(name string) string { return "network-status-" + name + ".json" }

// TestAnswersNetworkStatus keeps the network status that Multus writes into the pod's
// annotations, to the byte.
func TestAnswersNetworkStatus(t *testing.T) {
	v := version(t, os.Getenv(daemonVar))
	newPod(t)
	c := newCluster(t)
	d := startDaemon(t, c, "", nil)
	for name, result := range results {
		t.Run(name, func(t *testing.T) {
			c.addPod(nil) // without the annotation
			d.script(t, map[string]scripted.Action{"ADD": {Stdout: &result}})
			expect.Same(t, "status of ADD", status(t, exchange(t, readData(t, v, "add.request"))), http.StatusOK)
			golden(t, v, statusFile(name), []byte(c.networkStatus(t)))
		})
	}
}

// TestOursWritesTheStatusOfMultus: the same network status, from the same results. Only
// the default network comes first here.
func TestOursWritesTheStatusOfMultus(t *testing.T) {
	v := version(t, os.Getenv(daemonVar))
	for name, text := range results {
		theirs := readData(t, v, statusFile(name))
		var decoded []multinet.Status
		expect.NoError(t, strictJSON(theirs, &decoded))
		result := expect.Value(types100.GetResult(expect.Value(create.CreateFromBytes([]byte(text)))(t)))(t)
		ours := multinet.StatusValue(multinet.Statuses("primary", result, true))
		expect.Same(t, name, ours, multinet.StatusValue(decoded))
		if decoded[0].Default {
			expect.Same(t, name, ours, string(theirs))
		}
	}
}

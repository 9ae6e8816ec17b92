package etcfiles

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
)

const localhost = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"

// twoNetworks is the Result of a bridge with two addresses, and of a network with one of each
// family and lo, whose DNS overlap.
func twoNetworks(t *testing.T) *cni.Result {
	return resultOf(t, `{
		"DNS": [{"nameservers": ["10.1.0.1"], "search": ["a.example"], "options": ["ndots:2"]},
			{"nameservers": ["10.1.0.1", "fd00::1"], "domain": "b.example", "search": ["a.example", "b.example"]}],
		"Networks": [
			{"Interfaces": [{"Name": "br0", "Addresses": [{"Prefix": "10.1.0.1/24"}]},
				{"Name": "eth1", "Sandbox": "/c", "Addresses": [{"Prefix": "10.1.0.2/24"}, {"Prefix": "fe80::2/64"}]}]},
			{"Interfaces": [{"Name": "eth0", "Sandbox": "/c", "Addresses": [{"Prefix": "10.2.0.2/24"}, {"Prefix": "fd00::2/64"}]},
				{"Name": "lo", "Sandbox": "/c", "Addresses": [{"Prefix": "127.0.0.1/8"}]}]}]}`)
}

// resultOf reads a stored Result.
func resultOf(t *testing.T, stored string) *cni.Result {
	t.Helper()
	r := &cni.Result{}
	expect.NoError(t, json.Unmarshal([]byte(stored), r))
	return r
}

func TestResolvConfIsTheMergedDNS(t *testing.T) {
	r := twoNetworks(t)
	const want = "nameserver 10.1.0.1\nnameserver fd00::1\ndomain b.example\nsearch a.example b.example\noptions ndots:2\n"
	expect.Same(t, "returned", string(expect.Value(ResolvConf(r))(t)), want)
	path := filepath.Join(t.TempDir(), "resolv.conf")
	expect.NoError(t, WriteResolvConf(path, r))
	expect.Same(t, "written", string(expect.Value(os.ReadFile(path))(t)), want)
}

// TestAResolvConfWithoutServersIsNotWritten: a resolver would ask 127.0.0.1.
func TestAResolvConfWithoutServersIsNotWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	for _, dns := range []types.DNS{{}, {Search: []string{"a.example"}}} {
		expect.Is(t, WriteResolvConf(path, &cni.Result{DNS: []types.DNS{dns}}), cni.ErrNotFound)
	}
	bad := &cni.Result{DNS: []types.DNS{{Nameservers: []string{"10.1.0.1"}, Search: []string{"x\nnameserver 6.6.6.6"}}}}
	expect.Is(t, WriteResolvConf(path, bad), cni.ErrInvalidResult)
	expect.Is(t, expect.Err(os.Lstat(path)), os.ErrNotExist)
}

func TestHostsHasTheContainersAddresses(t *testing.T) {
	r := twoNetworks(t)
	more := Entry{netip.MustParseAddr("10.1.0.1"), []string{"host.internal", "gateway"}}
	const want = localhost + "10.2.0.2\tweb-1 web\nfd00::2\tweb-1 web\n10.1.0.2\tweb-1 web\n10.1.0.1\thost.internal gateway\n"
	expect.Same(t, "returned", string(expect.Value(Hosts(r, []string{"web-1", "web"}, more))(t)), want)
	path := filepath.Join(t.TempDir(), "hosts")
	expect.NoError(t, WriteHosts(path, r, []string{"web-1", "web"}, more))
	expect.Same(t, "written", string(expect.Value(os.ReadFile(path))(t)), want)
	expect.Same(t, "without names", string(expect.Value(Hosts(r, nil))(t)), localhost)
	expect.Is(t, WriteHosts(path, r, []string{"two words"}), cni.ErrInvalidArgument)
	expect.Same(t, "still written", string(expect.Value(os.ReadFile(path))(t)), want)
}

// TestHostsWithoutSandboxes: results before CNI 0.3.0 list no interfaces, and a Result that
// go-cni has stored has no Networks.
func TestHostsWithoutSandboxes(t *testing.T) {
	for _, stored := range []string{
		`{"Networks": [{"Interfaces": [{"Name": "eth0", "Addresses": [{"Prefix": "10.1.0.2/24"}]}]}]}`,
		`{"Interfaces": {"eth0": {"IPConfigs": [{"IP": "10.1.0.2"}]}, "lo": {"IPConfigs": [{"IP": "127.0.0.1"}]}}}`,
	} {
		expect.Same(t, "returned", string(expect.Value(Hosts(resultOf(t, stored), []string{"web"}))(t)), localhost+"10.1.0.2\tweb\n")
	}
}

package cni

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/expect"
)

const localhost = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"

// twoNetworks is the result of lo, of a bridge with two addresses, and of a network with
// one of each family, whose DNS overlap.
func twoNetworks(t *testing.T) *Result {
	return resultOf(t,
		`{"cniVersion": "1.1.0", "interfaces": [{"name": "br0"}, {"name": "eth1", "sandbox": "/c"}], "ips": [
			{"interface": 0, "address": "10.1.0.1/24"}, {"interface": 1, "address": "10.1.0.2/24"}, {"interface": 1, "address": "fe80::2/64"}],
		  "dns": {"nameservers": ["10.1.0.1"], "search": ["a.example"], "options": ["ndots:2"]}}`,
		`{"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": "/c"}, {"name": "lo", "sandbox": "/c"}], "ips": [
			{"interface": 0, "address": "10.2.0.2/24"}, {"interface": 0, "address": "fd00::2/64"}, {"interface": 1, "address": "127.0.0.1/8"}],
		  "dns": {"nameservers": ["10.1.0.1", "fd00::1"], "domain": "b.example", "search": ["a.example", "b.example"]}}`)
}

func TestResolvConfIsTheMergedDNS(t *testing.T) {
	r := twoNetworks(t)
	const want = "nameserver 10.1.0.1\nnameserver fd00::1\ndomain b.example\nsearch a.example b.example\noptions ndots:2\n"
	got, err := r.ResolvConf()
	if err != nil || string(got) != want {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	path := filepath.Join(t.TempDir(), "resolv.conf")
	expect.NoError(t, r.WriteResolvConf(path))
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("written %q, %v", got, err)
	}
}

// TestAResolvConfWithoutServersIsNotWritten: a resolver would ask 127.0.0.1.
func TestAResolvConfWithoutServersIsNotWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	for _, dns := range []types.DNS{{}, {Search: []string{"a.example"}}} {
		err := (&Result{DNS: []types.DNS{dns}}).WriteResolvConf(path)
		if !errors.Is(err, ErrNotFound) {
			t.Errorf("%+v: %v, want ErrNotFound", dns, err)
		}
	}
	bad := &Result{DNS: []types.DNS{{Nameservers: []string{"10.1.0.1"}, Search: []string{"x\nnameserver 6.6.6.6"}}}}
	if err := bad.WriteResolvConf(path); !errors.Is(err, ErrInvalidResult) {
		t.Errorf("%v, want ErrInvalidResult", err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("there is a file: %v", err)
	}
}

func TestHostsHasTheContainersAddresses(t *testing.T) {
	r := twoNetworks(t)
	more := HostsEntry{netip.MustParseAddr("10.1.0.1"), []string{"host.internal", "gateway"}}
	const want = localhost + "10.2.0.2\tweb-1 web\nfd00::2\tweb-1 web\n10.1.0.2\tweb-1 web\n10.1.0.1\thost.internal gateway\n"
	got, err := r.Hosts([]string{"web-1", "web"}, more)
	if err != nil || string(got) != want {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	path := filepath.Join(t.TempDir(), "hosts")
	expect.NoError(t, r.WriteHosts(path, []string{"web-1", "web"}, more))
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("written %q, %v", got, err)
	}
	if got, err := r.Hosts(nil); err != nil || string(got) != localhost {
		t.Errorf("without names: %q, %v", got, err)
	}
	err = r.WriteHosts(path, []string{"two words"})
	if now, _ := os.ReadFile(path); !errors.Is(err, ErrInvalidArgument) || string(now) != want {
		t.Errorf("%v, and the file is %q", err, now)
	}
}

// TestHostsWithoutSandboxes: results before CNI 0.3.0 list no interfaces.
func TestHostsWithoutSandboxes(t *testing.T) {
	r := resultOf(t, `{"cniVersion": "1.1.0", "ips": [{"address": "10.1.0.2/24"}]}`)
	got, err := r.Hosts([]string{"web"})
	if err != nil || !strings.HasSuffix(string(got), "\n10.1.0.2\tweb\n") {
		t.Errorf("%q, %v", got, err)
	}
}

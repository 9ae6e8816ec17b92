package ipam

import (
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/plugin"
)

func hostLocalRequest(config, args string) *plugin.Request {
	version := "1.0.0"
	if strings.Contains(config, `"0.2.0"`) {
		version = "0.2.0"
	}
	return &plugin.Request{Name: "podnet", Type: "host-local", CNIVersion: version, Config: []byte(config), Args: args}
}

const head = `{"cniVersion": "1.0.0", "name": "podnet", "type": "bridge", `

// TestARangeWithoutAddressesIsRefused: the reference plugin accepts such a
// range, then leaves it and allocates addresses that nobody configured.
func TestARangeWithoutAddressesIsRefused(t *testing.T) {
	_, err := parseHostLocal(hostLocalRequest(head+`"ipam": {"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.255"}}`, ""))
	want := `network "podnet": ipam: range set 0: the range from 10.1.0.255 to 10.1.0.254 in the subnet 10.1.0.0/24 is empty`
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestResolvConf(t *testing.T) {
	const text = "# nameserver 1.1.1.1\n;x y\n  nameserver 10.0.0.1 # c\nnameserver fd00::1\n\ndomain a.example\nsearch b c\nsearch d\noptions ndots:2 rotate\nsortlist x\nnameserver\n"
	want := types.DNS{
		Nameservers: []string{"10.0.0.1", "fd00::1"}, Domain: "a.example",
		Search: []string{"b", "c", "d"}, Options: []string{"ndots:2", "rotate"},
	}
	expect.Same(t, "parseResolvConf", parseResolvConf(text), want)
}

package builtin

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/nettest"
)

// TestStatusRefusesWhatEveryAddRefuses: otherwise a runtime would report the
// network as ready although no container starts.
func TestStatusRefusesWhatEveryAddRefuses(t *testing.T) {
	host, _ := plugintest.NetNS(t)
	nettest.Inside(t, host, func(nl *netlink.Handle) error {
		attrs := func(name string) netlink.LinkAttrs {
			a := netlink.NewLinkAttrs()
			a.Name = name
			return a
		}
		return errors.Join(nl.LinkAdd(&netlink.Bridge{LinkAttrs: attrs("plain0")}),
			nl.LinkAdd(&netlink.Veth{LinkAttrs: attrs("veth0"), PeerName: "veth1"}))
	})
	side := plugintest.Ours(host, New())
	dir := t.TempDir()
	ipam := fmt.Sprintf(`"ipam": {"type": "host-local", "subnet": "10.1.0.0/24", "dataDir": %q}`, dir)
	const static = `"ipam": {"type": "static", "addresses": [{"address": %q}]}`
	const chained = `"prevResult": {"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": "/x"}]}`
	for _, test := range []struct{ typ, refused, ready string }{
		{"ptp", `"mtu": 1400`, ipam},
		{"ptp", `"ipam": {}`, ipam},
		{"ptp", `"mtu": -1, ` + ipam, ipam},
		{"ptp", fmt.Sprintf(static, "10.1.0.2"), fmt.Sprintf(static, "10.1.0.2/24")},
		{"bridge", `"bridge": "veth0", ` + ipam, `"bridge": "plain0", ` + ipam},
		{"bridge", `"bridge": "plain0", "vlan": 5, ` + ipam, `"bridge": "new0", "vlan": 5, ` + ipam},
		{"bridge", `"bridge": "a/name%d"`, ipam},
		{"macvlan", `"master": "none0", ` + ipam, `"master": "veth0", ` + ipam},
		{"macvlan", `"master": "veth0", "mode": "none", ` + ipam, `"master": "veth0", ` + ipam},
		{"host-device", `"hwaddr": "none", ` + ipam, `"hwaddr": "02:00:00:00:00:01", ` + ipam},
		{"host-local", `"ipam": {"type": "host-local"}`, ipam},
		{"static", fmt.Sprintf(static, "10.1.0.2"), fmt.Sprintf(static, "10.1.0.2/24")},
		{"tuning", `"sysctl": {"kernel.hostname": "x"}, ` + chained, `"sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}`},
		{"tuning", `"mac": "none", ` + chained, `"mac": "02:00:00:00:00:01"`},
		{"bandwidth", `"ingressRate": 800, ` + chained, `"ingressRate": 800, "ingressBurst": 800`},
		{"portmap", `"markMasqBit": 32, ` + chained, `"masqAll": true`},
		{"firewall", `"ingressPolicy": "none", ` + chained, `"ingressPolicy": "same-bridge"`},
	} {
		call := func(config string) plugintest.Call {
			_, pin := plugintest.NetNS(t)
			return plugintest.Call{Type: test.typ, ID: "c1", IfName: "eth0", NetNS: pin,
				Config: fmt.Sprintf(`{"cniVersion": "%s", "name": "net", "type": %q, %s}`, types100.ImplementedSpecVersion, test.typ, config)}
		}
		_, added := side.Run(t.Context(), "ADD", call(test.refused))
		_, asked := side.Run(t.Context(), "STATUS", call(test.refused))
		if added == nil || asked == nil {
			t.Errorf("%s with %s: ADD: %v, STATUS: %v", test.typ, test.refused, added, asked)
			continue
		}
		// STATUS has the same text, perhaps with another code.
		if !strings.Contains(added.Error(), asked.Error()) && plugintest.Code(asked) != 50 {
			t.Errorf("%s with %s: ADD says %v, STATUS %v", test.typ, test.refused, added, asked)
		}
		if _, err := side.Run(t.Context(), "STATUS", call(test.ready)); err != nil {
			t.Errorf("%s with %s: STATUS: %v", test.typ, test.ready, err)
		}
	}
}

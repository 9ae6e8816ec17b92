package builtin

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/firewalldtest"
	"github.com/embedcni/cni/internal/kernel/firewalld"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

const staticAddress = `"ipam": {"type": "static", "addresses": [{"address": "10.1.0.2/24", "gateway": "10.1.0.1"}], "routes": [{"dst": "192.0.2.0/24"}]}`

const (
	emptyContainer = "ip addr flush dev eth0; ip link set eth0 down"
	noRules        = "nft flush ruleset"
)

// damaging is an attachment of one type, and what can happen to it, one after the other.
type damaging struct {
	config, ipam string // of the plugin; the type that is compared, if it is that of IPAM
	host         []string
	container    string // after which the host is damaged
}

// VETH is the host's end in the scripts, DIR a directory.
var damagings = map[string]damaging{
	conflist.Bridge: {
		config: `"bridge": "br0", "isGateway": true, "ipMasq": true, ` + staticAddress, container: emptyContainer,
		host: []string{noRules, "ip addr flush dev br0", "ip link set VETH down", "ip link set VETH nomaster", "ip link del br0"},
	},
	conflist.PTP: {
		config: `"ipMasq": true, ` + staticAddress, container: emptyContainer,
		host: []string{noRules, "ip route flush dev VETH", "ip addr flush dev VETH", "ip link set VETH down"},
	},
	conflist.MACVLAN:    {config: `"master": "lan0", ` + staticAddress, container: emptyContainer},
	conflist.HostDevice: {config: `"device": "lan0", ` + staticAddress, container: emptyContainer},
	conflist.Loopback:   {container: "ip link set lo down"},
	conflist.Flannel: {
		config: `"subnetFile": "DIR/subnet.env", "dataDir": "DIR", "ipam": {"dataDir": "DIR"}, "delegate": {"bridge": "br0"}`,
		host:   []string{"sed -i s/10.1.0/10.1.7/ DIR/subnet.env"},
	},
	conflist.HostLocal: {
		config: `"bridge": "br0", "ipam": {"type": "host-local", "subnet": "10.1.0.0/24", "dataDir": "DIR"}`, ipam: conflist.HostLocal,
		host: []string{"rm DIR/podnet/10.1.0.*"},
	},
	conflist.Static: {config: `"bridge": "br0", ` + staticAddress, ipam: conflist.Static, container: emptyContainer, host: []string{"ip link del br0"}},
	conflist.Portmap: {
		config: `"runtimeConfig": {"portMappings": [{"hostPort": 8001, "containerPort": 80, "protocol": "tcp"}]}`,
		host:   []string{"echo 0 > /proc/sys/net/ipv4/conf/veth0/route_localnet", noRules},
	},
	conflist.Firewall: {
		config: `"backend": "firewalld", "ingressPolicy": "isolated"`,
		host:   []string{"nft flush set inet embedcni isolated", "ZONE"},
	},
	conflist.Bandwidth: {
		config: `"egressRate": 8000000, "egressBurst": 8000000, "ingressRate": 8000000, "ingressBurst": 8000000`,
		host:   []string{"tc qdisc del dev veth0 root", "for i in $(ip -o link show type ifb | cut -d: -f2); do ip link del $i; done"},
	},
	conflist.Tuning: {
		config:    `"dataDir": "DIR", "mtu": 1400, "sysctl": {"net.core.somaxconn": "500"}`,
		container: "ip link set eth0 mtu 1300; echo 400 > /proc/sys/net/core/somaxconn",
	},
}

// TestTheTableSaysWhatIsRepaired: every plugin compares, and makes again what the table
// of known types says, and nothing else.
func TestTheTableSaysWhatIsRepaired(t *testing.T) {
	for typ := range plugins() {
		row := conflist.Known(typ)
		if _, ok := New()(typ).(contract.Comparer); !ok || !row.Compared {
			t.Errorf("%s: it compares: %t, the table says %t", typ, ok, row.Compared)
		}
		d, ok := damagings[typ]
		if !ok {
			t.Errorf("%s: nothing is damaged", typ)
			continue
		}
		t.Run(typ, func(t *testing.T) {
			host, inside := d.repaired(t, typ)
			if !slices.Equal(host, row.Remakes) || !slices.Equal(inside, row.RemakesInside) {
				t.Errorf("it makes again %q and inside %q, the table says %q and %q", host, inside, row.Remakes, row.RemakesInside)
			}
		})
	}
}

// repaired returns the kinds of the parts that can be made again.
func (d damaging) repaired(t *testing.T, typ string) (host, inside []string) {
	h, dir := plugintest.NewHost(t), t.TempDir()
	plugintest.UseIPTables(t, "nft")
	given := contract.Given{Record: plugintest.NewMemory(), Bus: firewalld.Open("unix:path=" + dir + "/none")}
	var zones *firewalldtest.Server
	if typ == conflist.Firewall {
		zones = firewalldtest.Start(t, h.Host)
		given.Bus = firewalld.Open(zones.Address)
	}
	ctx := contract.With(t.Context(), given)
	c := plugintest.Call{Type: typ, ID: "c1", IfName: "eth0", NetNS: h.NetNS, Prev: chained(h)}
	switch {
	case d.ipam != "":
		c.Type = conflist.Bridge
		fallthrough
	case conflist.Known(typ).Makes.IsNew():
		nettest.Change(t, h.Host, "veth0", func(nl *netlink.Handle, l netlink.Link) error { return nl.LinkDel(l) })
		master(t, h.Host)
		nettest.AddAddress(t, h.Host, "veth0", "10.1.0.1/24")
		c.Prev = nil
	case typ == conflist.Loopback:
		c.IfName, c.Prev = "lo", nil
	default:
		nettest.AddAddress(t, h.Host, "veth0", "10.1.0.1/24")
	}
	c.Config = `{"cniVersion": "1.0.0", "name": "podnet", "type": "` + c.Type + `"`
	if d.config != "" {
		c.Config += ", " + strings.ReplaceAll(d.config, "DIR", dir)
	}
	c.Config += "}"
	const lease = "FLANNEL_NETWORK=10.1.0.0/16\nFLANNEL_SUBNET=10.1.0.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
	err := os.WriteFile(filepath.Join(dir, "subnet.env"), []byte(lease), 0o644)
	expect.NoError(t, err)
	if c.Prev, err = plugintest.Ours(h.Host, New()).Run(ctx, "ADD", c); err != nil {
		t.Fatal(err)
	}
	if d.ipam != "" { // it gets the configuration of the other one
		c.Type = d.ipam
	}
	result, err := plugintest.Result(c.Prev)
	expect.NoError(t, err)
	kinds := [2]map[string]bool{{}, {}}
	look := func() {
		t.Helper()
		for _, diff := range differences(ctx, t, h.Host, c) {
			if diff.Fix == nil {
				continue
			}
			at := 0
			if diff.Inside {
				at = 1
			}
			kinds[at][string(diff.Kind)] = true
		}
	}
	look()
	if len(kinds[0])+len(kinds[1]) > 0 {
		t.Errorf("without damage: %v", kinds)
	}
	if d.container != "" {
		nettest.Shell(t, h.Container, d.container)
		look()
	}
	for _, script := range d.host {
		if script == "ZONE" {
			zones.RemoveSource("trusted", "10.1.0.2/32")
		} else {
			veth := ""
			for _, i := range result.Interfaces {
				if i.Sandbox == "" && strings.HasPrefix(i.Name, "veth") {
					veth = i.Name
				}
			}
			nettest.Shell(t, h.Host, strings.NewReplacer("VETH", veth, "DIR", dir).Replace(script))
		}
		look()
	}
	return slices.Sorted(maps.Keys(kinds[0])), slices.Sorted(maps.Keys(kinds[1]))
}

// chained returns the result of a plugin that made the pair of the host.
func chained(h plugintest.Host) []byte {
	return []byte(strings.NewReplacer(`"interfaces": [`, `"interfaces": [{"name": "br1"}, `, `"interface": 1`, `"interface": 2`).Replace(string(h.Result())))
}

// master makes lan0, which a plugin can use.
func master(t *testing.T, host *netns.Handle) {
	t.Helper()
	nettest.Inside(t, host, func(nl *netlink.Handle) error {
		return errors.Join(
			nl.LinkAdd(&netlink.Veth{LinkAttrs: nettest.Attrs("lan0"), PeerName: "lan1"}),
			nl.LinkAdd(&netlink.Veth{LinkAttrs: nettest.Attrs("veth0"), PeerName: "veth1"}))
	})
	nettest.SetUp(t, host, "lan0", "lan1")
}

func differences(ctx context.Context, t *testing.T, host *netns.Handle, c plugintest.Call) (all []contract.Difference) {
	t.Helper()
	expect.NoError(t, plugintest.Comparing(ctx, host, New(), c, func(ctx context.Context, r *plugin.Request, p contract.Comparer) error {
		v, done, err := contract.Kernel(ctx, r)
		if err != nil {
			return err
		}
		all, err = p.Compare(ctx, r, v)
		return errors.Join(err, done())
	}))
	return all
}

package lan

import (
	"context"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/thread"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/plugin"
)

const (
	dual = `"ipam": {"type": "host-local", "dataDir": "DIR", "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]],
		"routes": [{"dst": "0.0.0.0/0"}, {"dst": "10.9.0.0/16", "gw": "10.1.0.7"}, {"dst": "::/0"}]}`
	all = `"master": "veth0", "mode": "private", "mtu": 1300, "mac": "02:00:00:00:00:77", "bcqueuelen": 500, "dns": {"nameservers": ["10.1.0.1"]}, ` + dual
)

func macvlanSide(h plugintest.Host) plugintest.Side {
	assigns := ipam.NewHostLocal()
	return plugintest.Ours(h.Host, func(typ string) plugin.Plugin {
		if typ == "host-local" {
			return assigns
		}
		return MACVLAN{}
	})
}

// macvlanHost has no duplicate detection in the container.
func macvlanHost(t testing.TB) plugintest.Host {
	h := plugintest.NewHost(t)
	expect.NoError(t, h.Container.Do(nettest.NoAddressDetection))
	return h
}

func macvlanCall(h plugintest.Host, dir, config string) plugintest.Call {
	return plugintest.Call{
		Type: "macvlan", ID: "c1", IfName: "net1", NetNS: h.NetNS,
		Config: strings.ReplaceAll(`{"cniVersion": "1.0.0", "name": "podnet", "type": "macvlan", `+config+`}`, "DIR", dir),
	}
}

// TestAddFails: an ADD that fails leaves nothing behind.
func TestMACVLANAddFails(t *testing.T) {
	for name, tt := range map[string]struct {
		config string
		code   uint
	}{
		"mode":             {`"master": "veth0", "mode": "x"`, 7},
		"mac":              {`"master": "veth0", "mac": "x"`, 7},
		"negative mtu":     {`"master": "veth0", "mtu": -1`, 7},
		"mtu":              {`"master": "veth0", "mtu": 1501, ` + dual, 7},
		"master":           {`"master": "veth9", ` + dual, 999},
		"multicast mac":    {`"master": "veth0", "mac": "01:00:00:00:00:01", ` + dual, 999},
		"no IPAM plugin":   {`"master": "veth0", "ipam": {"type": "none"}`, 999},
		"IPAM fails":       {`"master": "veth0", "ipam": {"type": "host-local", "dataDir": "DIR"}`, 7},
		"bad route":        {`"master": "veth0", "ipam": {"type": "host-local", "dataDir": "DIR", "subnet": "10.1.0.0/24", "routes": [{"dst": "10.8.0.0/16", "gw": "10.77.0.1"}]}`, 999},
		"interface exists": {`"master": "veth0", "IFNAME": "eth0", ` + dual, 999},
	} {
		t.Run(name, func(t *testing.T) {
			h, dir := macvlanHost(t), t.TempDir()
			c := macvlanCall(h, dir, tt.config)
			if strings.Contains(tt.config, "IFNAME") {
				c.IfName = "eth0"
			}
			side := macvlanSide(h)
			lookup := plugintest.Ours(h.Host, func(typ string) plugin.Plugin {
				switch typ {
				case "host-local":
					return ipam.NewHostLocal()
				case "macvlan":
					return MACVLAN{}
				}
				return nil
			})
			if name == "no IPAM plugin" {
				side = lookup
			}
			before := plugintest.Audit(t, h.Container, dir)
			err := side.MustFail(t, "ADD", c)
			expect.Same(t, "code", plugintest.Code(err), tt.code)
			t.Log(err)
			plugintest.NoLeak(t, before, plugintest.Audit(t, h.Container, dir))
		})
	}
}

func TestMACVLANDel(t *testing.T) {
	for name, prepare := range map[string]func(plugintest.Call) plugintest.Call{
		"without a result":    func(c plugintest.Call) plugintest.Call { c.Prev = nil; return c },
		"without a namespace": func(c plugintest.Call) plugintest.Call { c.NetNS = ""; return c },
		"a namespace gone":    func(c plugintest.Call) plugintest.Call { c.NetNS += "gone"; return c },
	} {
		t.Run(name, func(t *testing.T) {
			h, dir := macvlanHost(t), t.TempDir()
			side, c := macvlanSide(h), macvlanCall(h, dir, all)
			side.Must(t, "DEL", c)
			before := plugintest.Audit(t, h.Container, dir)
			c.Prev = side.Must(t, "ADD", c)
			c = prepare(c)
			b := &thread.Batch{}
			if _, err := side.Run(contract.With(t.Context(), contract.Given{Batch: b}), "DEL", c); err != nil {
				t.Error(err)
			}
			if err := b.Flush(context.Background()); err != nil {
				t.Error(err)
			}
			side.Must(t, "DEL", c)
			after := plugintest.Audit(t, h.Container, dir)
			if !strings.Contains(name, "namespace") {
				plugintest.NoLeak(t, before, after)
			} else if added, _ := audit.Diff(before, after); strings.Contains(strings.Join(added, "\n"), "file ") {
				t.Errorf("left %q", added)
			}
		})
	}
	t.Run("another's interface", func(t *testing.T) {
		h, dir := macvlanHost(t), t.TempDir()
		c := macvlanCall(h, dir, all)
		c.IfName = "eth0" // a veth
		macvlanSide(h).Must(t, "DEL", c)
		nettest.Link(t, h.Container, "eth0")
	})
}

// TestWithoutACarrier: an interface gets its address even if its master has no
// carrier.
func TestMACVLANWithoutACarrier(t *testing.T) {
	h, dir := macvlanHost(t), t.TempDir()
	nettest.Change(t, h.Container, "eth0", func(nl *netlink.Handle, l netlink.Link) error { return nl.LinkSetDown(l) })
	side, c := macvlanSide(h), macvlanCall(h, dir, all)
	ctx, cancel := context.WithTimeout(t.Context(), expect.Patience)
	defer cancel()
	out := expect.Value(side.Run(ctx, "ADD", c))(t)
	c.Prev = out
	side.Must(t, "CHECK", c)
	side.Must(t, "DEL", c)
}

// TestTheNameIsTakenOnTheHost: a name that is taken on the host does not matter
// to the container.
func TestMACVLANTheNameIsTakenOnTheHost(t *testing.T) {
	h, dir := macvlanHost(t), t.TempDir()
	nettest.AddBridge(t, h.Host, "net1")
	side, c := macvlanSide(h), macvlanCall(h, dir, all)
	c.Prev = side.Must(t, "ADD", c)
	side.Must(t, "CHECK", c)
	side.Must(t, "DEL", c)
}

func TestMACVLANStatus(t *testing.T) {
	h, dir := macvlanHost(t), t.TempDir()
	side, c := macvlanSide(h), macvlanCall(h, dir, all)
	side.Must(t, "STATUS", c)
	side.Must(t, "ADD", c)
	c.Config = strings.Replace(c.Config, "veth0", "veth9", 1)
	if err := side.MustFail(t, "STATUS", c); plugintest.Code(err) != 50 {
		t.Errorf("got %v", err)
	}
}

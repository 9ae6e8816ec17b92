package lan

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

const (
	device = `"device": "dev0", "dns": {"nameservers": ["10.1.0.1"]}, ` + dual
	mac    = "02:00:00:00:00:55"
)

func lookupWith(p HostDevice) func(string) plugin.Plugin {
	assigns := ipam.NewHostLocal()
	return func(typ string) plugin.Plugin {
		switch typ {
		case "host-local":
			return assigns
		case "host-device":
			return p
		}
		return nil
	}
}

func deviceSide(h plugintest.Host) plugintest.Side {
	return plugintest.Ours(h.Host, lookupWith(HostDevice{}))
}

// deviceHost has an interface dev0, which is up.
func deviceHost(t testing.TB) plugintest.Host {
	h := plugintest.NewHost(t)
	expect.NoError(t, h.Host.Do(nettest.NoAddressDetection))
	expect.NoError(t, h.Container.Do(nettest.NoAddressDetection))
	hw := expect.Value(net.ParseMAC(mac))(t)
	nettest.Inside(t, h.Host, func(nl *netlink.Handle) error {
		a := nettest.Attrs("dev0")
		a.HardwareAddr = hw
		return nl.LinkAdd(&netlink.Veth{LinkAttrs: a, PeerName: "peer", PeerHardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 0x56}})
	})
	nettest.SetUp(t, h.Host, "dev0")
	nettest.SetUp(t, h.Host, "peer")
	return h
}

func deviceCall(h plugintest.Host, dir, config string) plugintest.Call {
	return plugintest.Call{
		Type: "host-device", ID: "c1", IfName: "net1", NetNS: h.NetNS,
		Config: strings.ReplaceAll(`{"cniVersion": "1.0.0", "name": "podnet", "type": "host-device", `+config+`}`, "DIR", dir),
	}
}

func down(t testing.TB, ns *netns.Handle, name string) {
	t.Helper()
	nettest.Change(t, ns, name, func(nl *netlink.Handle, l netlink.Link) error { return nl.LinkSetDown(l) })
}

// TestAddFails: an ADD that fails leaves the interface on the host as it was.
func TestHostDeviceAddFails(t *testing.T) {
	for name, tt := range map[string]struct {
		config  string
		code    uint
		prepare func(*testing.T, plugintest.Host)
	}{
		"no device":     {`"device": "dev9", ` + dual, 999, nil},
		"no such MAC":   {`"hwaddr": "02:00:00:00:00:99", ` + dual, 999, nil},
		"not named":     {dual, 7, nil},
		"lo":            {`"device": "lo", ` + dual, 999, nil},
		"name taken":    {`"device": "dev0", ` + dual, 999, func(t *testing.T, h plugintest.Host) { nettest.AddBridge(t, h.Container, "net1") }},
		"IPAM fails":    {`"device": "dev0", "ipam": {"type": "host-local", "dataDir": "DIR"}`, 7, nil},
		"no IPAM":       {`"device": "dev0", "ipam": {"type": "none"}`, 999, nil},
		"bad route":     {`"device": "dev0", "ipam": {"type": "host-local", "dataDir": "DIR", "subnet": "10.1.0.0/24", "routes": [{"dst": "10.8.0.0/16", "gw": "10.77.0.1"}]}`, 999, nil},
		"was down":      {`"device": "dev0", "ipam": {"type": "none"}`, 999, func(t *testing.T, h plugintest.Host) { down(t, h.Host, "dev0") }},
		"same name too": {`"device": "dev0", "ipam": {"type": "none"}`, 999, func(t *testing.T, h plugintest.Host) { nettest.AddBridge(t, h.Container, "dev0") }},
	} {
		t.Run(name, func(t *testing.T) {
			h, dir := deviceHost(t), t.TempDir()
			if tt.prepare != nil {
				tt.prepare(t, h)
			}
			before, hostBefore := plugintest.Audit(t, h.Container, dir), plugintest.Audit(t, h.Host)
			err := deviceSide(h).MustFail(t, "ADD", deviceCall(h, dir, tt.config))
			expect.Same(t, "code", plugintest.Code(err), tt.code)
			t.Log(err)
			plugintest.NoLeak(t, before, plugintest.Audit(t, h.Container, dir))
			plugintest.NoLeak(t, hostBefore, plugintest.Audit(t, h.Host))
			expect.Same(t, "the alias", nettest.Link(t, h.Host, "dev0").Attrs().Alias, "")
		})
	}
}

// TestAMoveThatFailsHalfway: the kernel has moved the interface before it finds
// that the name is taken.
func TestHostDeviceAMoveThatFailsHalfway(t *testing.T) {
	h := deviceHost(t)
	host, inside := dial(t, h.Host), dial(t, h.Container)
	dev := nettest.Link(t, h.Host, "dev0")
	err := host.Move(dev.Attrs().Index, h.Container, links.Move{Name: "eth0", Alias: "dev0", Up: true})
	if !errors.Is(err, unix.EEXIST) {
		t.Fatal(err)
	}
	nettest.Link(t, h.Container, "dev0")
	m := moved{hostName: "dev0", inside: []string{"net1", "dev0"}, wasUp: true}
	for range 2 { // the second call finds it back
		expect.NoError(t, m.back(h.Host, host, inside))
		if nettest.Link(t, h.Host, "dev0").Attrs().Flags&net.FlagUp == 0 {
			t.Error("dev0 is down")
		}
		down(t, h.Host, "dev0")
	}
	m.inside = nil
	if err := m.back(h.Host, host, inside); err != nil || nettest.Link(t, h.Host, "dev0").Attrs().Flags&net.FlagUp == 0 {
		t.Errorf("%v, or dev0 is down", err)
	}
}

func dial(t *testing.T, ns *netns.Handle) *links.Conn {
	t.Helper()
	c := expect.Value(links.Dial(ns))(t)
	t.Cleanup(func() { expect.NoError(t, c.Close()) })
	return c
}

// TestNamesAreTakenElsewhere: a name that is taken elsewhere does not prevent
// the move.
func TestHostDeviceNamesAreTakenElsewhere(t *testing.T) {
	h, dir := deviceHost(t), t.TempDir()
	for _, b := range []struct {
		ns   *netns.Handle
		name string
	}{{h.Container, "dev0"}, {h.Host, "net1"}} {
		nettest.AddBridge(t, b.ns, b.name)
	}
	side, c := deviceSide(h), deviceCall(h, dir, device)
	c.Prev = side.Must(t, "ADD", c)
	side.Must(t, "CHECK", c)
	side.Must(t, "DEL", c)
	expect.Same(t, "hardware address", nettest.Link(t, h.Host, "dev0").Attrs().HardwareAddr.String(), mac)
	nettest.Link(t, h.Host, "net1")
}

func TestHostDeviceDel(t *testing.T) {
	files := func(t *testing.T, dir string) []string {
		return expect.Value(filepath.Glob(dir + "/podnet/10.*"))(t)
	}
	for name, prepare := range map[string]func(*testing.T, plugintest.Host, *plugintest.Call){
		"without a result":    func(_ *testing.T, _ plugintest.Host, c *plugintest.Call) { c.Prev = nil },
		"without a namespace": func(_ *testing.T, _ plugintest.Host, c *plugintest.Call) { c.NetNS = "" },
		"a namespace gone":    func(_ *testing.T, _ plugintest.Host, c *plugintest.Call) { c.NetNS += "gone" },
		"the interface gone": func(t *testing.T, h plugintest.Host, _ *plugintest.Call) {
			nettest.Change(t, h.Container, "net1", func(nl *netlink.Handle, l netlink.Link) error { return nl.LinkDel(l) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, dir := deviceHost(t), t.TempDir()
			side, c := deviceSide(h), deviceCall(h, dir, device)
			side.Must(t, "DEL", c)
			c.Prev = side.Must(t, "ADD", c)
			prepare(t, h, &c)
			side.Must(t, "DEL", c)
			side.Must(t, "DEL", c)
			if left := files(t, dir); left != nil {
				t.Errorf("left %q", left)
			}
			if name == "without a result" {
				nettest.Link(t, h.Host, "dev0")
			}
		})
	}
	t.Run("the name is taken on the host", func(t *testing.T) {
		h, dir := deviceHost(t), t.TempDir()
		side, c := deviceSide(h), deviceCall(h, dir, device)
		c.Prev = side.Must(t, "ADD", c)
		nettest.Change(t, h.Host, "veth0", func(nl *netlink.Handle, l netlink.Link) error {
			return errors.Join(nl.LinkSetDown(l), nl.LinkSetName(l, "dev0"))
		})
		t.Log(side.MustFail(t, "DEL", c))
		expect.Same(t, "the alias", nettest.Link(t, h.Container, "net1").Attrs().Alias, "dev0")
		if left := files(t, dir); left != nil {
			t.Errorf("left %q", left)
		}
	})
	t.Run("no alias", func(t *testing.T) {
		h, dir := deviceHost(t), t.TempDir()
		side, c := deviceSide(h), deviceCall(h, dir, device)
		c.Prev = side.Must(t, "ADD", c)
		nettest.Change(t, h.Container, "net1", func(nl *netlink.Handle, l netlink.Link) error { return nl.LinkSetAlias(l, "") })
		t.Log(side.MustFail(t, "DEL", c))
	})
	t.Run("another's interface", func(t *testing.T) {
		h, dir := deviceHost(t), t.TempDir()
		c := deviceCall(h, dir, device)
		c.IfName = "eth0"
		deviceSide(h).Must(t, "DEL", c)
		nettest.Link(t, h.Container, "eth0")
	})
}

// TestUserSpace: a user-space device has addresses but no interface.
func TestHostDeviceUserSpace(t *testing.T) {
	h, dir := deviceHost(t), t.TempDir()
	side := plugintest.Ours(h.Host, lookupWith(HostDevice{sys: fakeSys(t)}))
	c := deviceCall(h, dir, `"pciBusID": "0000:02", "ipam": {"type": "host-local", "dataDir": "DIR", "subnet": "10.1.0.0/24"}`)
	c.Prev = side.Must(t, "ADD", c)
	want := expect.JSON(t, []byte(`{"cniVersion": "1.0.0", "interfaces": [{"name": "net1", "sandbox": "PIN"}],
		"ips": [{"interface": 0, "address": "10.1.0.2/24", "gateway": "10.1.0.1"}]}`))
	expect.Same(t, "previous result", strings.ReplaceAll(expect.JSON(t, c.Prev), h.NetNS, "PIN"), want)
	side.Must(t, "CHECK", c)
	side.Must(t, "DEL", c)
	side.MustFail(t, "CHECK", c)
}

// TestFault_F58_CheckWantsTheInterfaceOfADeviceThatHadNone: CHECK cannot miss
// an interface that ADD did not make. The device's virtual machine may hide it
// from /sys, or it may have another driver by now.
func TestFault_F58_CheckWantsTheInterfaceOfADeviceThatHadNone(t *testing.T) {
	h, dir := deviceHost(t), t.TempDir()
	side := plugintest.Ours(h.Host, lookupWith(HostDevice{sys: fakeSys(t)}))
	c := deviceCall(h, dir, `"pciBusID": "0000:02", "ipam": {"type": "host-local", "dataDir": "DIR", "subnet": "10.1.0.0/24"}`)
	c.Prev = side.Must(t, "ADD", c)
	later := plugintest.Ours(h.Host, lookupWith(HostDevice{sys: t.TempDir()}))
	later.Must(t, "CHECK", c)
	expect.NoError(t, os.Remove(filepath.Join(dir, "podnet", "10.1.0.2")))
	later.MustFail(t, "CHECK", c)
}

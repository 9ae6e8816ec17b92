package tuning

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/plugin"
)

const configured = `{"cniVersion": "1.0.0", "name": "podnet", "type": "tuning", "dataDir": %q,
	"sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1", "net.ipv4.ip_local_port_range": "2000 3000"},
	"mac": "02:00:00:00:00:99", "promisc": true, "mtu": 1400, "allmulti": true, "txQLen": 77}`

func ours(h plugintest.Host) plugintest.Side {
	return plugintest.Ours(h.Host, func(string) plugin.Plugin { return Plugin{} })
}

func callFor(h plugintest.Host, config string) plugintest.Call {
	return plugintest.Call{Type: "tuning", ID: "c1", IfName: "eth0", NetNS: h.NetNS, Config: config, Prev: h.Result()}
}

// described returns the settings that tuning changes.
func described(t testing.TB, h plugintest.Host) string {
	t.Helper()
	conn := expect.Value(links.Dial(h.Container))(t)
	defer conn.Close()
	link := expect.Value(conn.Link("eth0"))(t)
	s := stateOf(link)
	var sysctls []string
	for _, file := range []string{"conf/eth0/arp_filter", "ip_local_port_range"} {
		expect.NoError(t, h.Container.Do(func() error {
			data, err := os.ReadFile("/proc/sys/net/ipv4/" + file)
			sysctls = append(sysctls, strings.Join(strings.Fields(string(data)), " "))
			return err
		}))
	}
	return fmt.Sprint(s.Mac, " ", *s.Promisc, s.Mtu, *s.Allmulti, *s.TxQLen, sysctls)
}

// TestDel: DEL leaves no file, unless the interface is missing: the device may
// have left the container.
func TestDel(t *testing.T) {
	for name, prepare := range map[string]func(*testing.T, plugintest.Host, *plugintest.Call, string){
		"added":               func(*testing.T, plugintest.Host, *plugintest.Call, string) {},
		"without a result":    func(_ *testing.T, _ plugintest.Host, c *plugintest.Call, _ string) { c.Prev = nil },
		"without a namespace": func(_ *testing.T, _ plugintest.Host, c *plugintest.Call, _ string) { c.NetNS = "" },
		"a namespace gone":    func(_ *testing.T, _ plugintest.Host, c *plugintest.Call, _ string) { c.NetNS += "gone" },
		"without an interface": func(t *testing.T, h plugintest.Host, _ *plugintest.Call, _ string) {
			nettest.Change(t, h.Container, "eth0", func(nl *netlink.Handle, l netlink.Link) error { return nl.LinkDel(l) })
		},
		"a file cut short": func(t *testing.T, _ plugintest.Host, _ *plugintest.Call, file string) {
			for _, name := range []string{file, unfinished(file)} {
				expect.NoError(t, os.WriteFile(name, []byte(`{"ma`), 0o600))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, dir := plugintest.NewHost(t), t.TempDir()
			side, c := ours(h), callFor(h, fmt.Sprintf(configured, dir))
			side.Must(t, "DEL", c)
			c.Prev = side.Must(t, "ADD", c)
			prepare(t, h, &c, backupFile(dir, "c1", "eth0"))
			side.Must(t, "DEL", c)
			side.Must(t, "DEL", c)
			left, err := filepath.Glob(dir + "/*")
			if stays := strings.HasPrefix(name, "without an") || strings.Contains(name, "namespace"); err != nil || stays != (left != nil) {
				t.Errorf("left %q, %v", left, err)
			}
		})
	}
}

// TestDelThatCannotPutBackKeepsTheFile: a setting that cannot be restored does
// not block the others, and is not forgotten.
func TestDelThatCannotPutBackKeepsTheFile(t *testing.T) {
	h, dir := plugintest.NewHost(t), t.TempDir()
	side, c := ours(h), callFor(h, fmt.Sprintf(configured, dir))
	c.Prev = side.Must(t, "ADD", c)
	file := backupFile(dir, "c1", "eth0")
	expect.NoError(t, os.WriteFile(file, []byte(`{"mac": "02:00:00:00:00:02", "mtu": 1, "txQLen": 1000}`), 0o600))
	err := side.MustFail(t, "DEL", c)
	if want := `interface "eth0", its earlier settings: set mtu to 1: invalid argument`; !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
	conn, err := links.Dial(h.Container)
	expect.NoError(t, err)
	defer conn.Close()
	link, err := conn.Link("eth0")
	expect.NoError(t, err)
	s := stateOf(link)
	if s.Mac != plugintest.ContainerMAC || *s.TxQLen != 1000 {
		t.Errorf("not put back: %+v", s)
	}
	side.MustFail(t, "DEL", c)
}

func TestAddRefuses(t *testing.T) {
	list := filepath.Join(t.TempDir(), "allowlist.conf")
	expect.NoError(t, os.WriteFile(list, []byte("^net\\.core\\.\n"), 0o600))
	h := plugintest.NewHost(t)
	side := plugintest.Ours(h.Host, func(string) plugin.Plugin { return Plugin{allowlist: list} })
	c := callFor(h, fmt.Sprintf(configured, t.TempDir()))
	want := list + `: sysctl "net.ipv4.conf.IFNAME.arp_filter" matches no line of it`
	if err := side.MustFail(t, "ADD", c); err.Error() != want || plugintest.Code(err) != 7 {
		t.Errorf("got %v, want %s", err, want)
	}
	side.Must(t, "DEL", c)
	c.Prev = nil
	for _, verb := range []string{"ADD", "CHECK"} {
		if err := ours(h).MustFail(t, verb, c); plugintest.Code(err) != 7 {
			t.Errorf("%s without a result: %v", verb, err)
		}
	}
}

// noting is a runtime that keeps the notes of one attachment.
type noting struct {
	contract.Record
	notes map[string]json.RawMessage
}

func (n noting) Fact(key string) json.RawMessage { return n.notes[key] }
func (n noting) Note(key string, value any) (err error) {
	n.notes[key], err = json.Marshal(value)
	return err
}

// TestFault_F37_CheckWantsSettingsThatALaterPluginReplaced: of two tuning
// plugins in a chain the second wins. Settings that it leaves alone are still
// the first one's.
func TestFault_F37_CheckWantsSettingsThatALaterPluginReplaced(t *testing.T) {
	h, notes := plugintest.NewHost(t), noting{notes: map[string]json.RawMessage{}}
	ctx := contract.With(t.Context(), contract.Given{Record: notes})
	chained := func(fields string) plugintest.Call {
		return callFor(h, fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "podnet", "type": "tuning", "dataDir": %q, %s}`, t.TempDir(), fields))
	}
	first := chained(`"mtu": 1400, "txQLen": 70, "allmulti": true, "mac": "02:00:00:00:00:98", "sysctl": {"net.core.somaxconn": "500", "net.ipv4.conf.IFNAME.arp_filter": "1"}`)
	second := chained(`"mtu": 1300, "allmulti": false, "mac": "02:00:00:00:00:99", "sysctl": {"net.core.somaxconn": "600"}`)
	run := func(verb string, c plugintest.Call) error {
		out, err := ours(h).Run(ctx, verb, c)
		if verb == "ADD" {
			first.Prev, second.Prev = out, out
		}
		return err
	}
	for _, c := range []*plugintest.Call{&first, &second} {
		expect.NoError(t, run("ADD", *c))
	}
	for name, c := range map[string]plugintest.Call{"first": first, "second": second} {
		if err := run("CHECK", c); err != nil {
			t.Errorf("CHECK of the %s: %v", name, err)
		}
	}
	nettest.Change(t, h.Container, "eth0", func(nl *netlink.Handle, l netlink.Link) error {
		return errors.Join(nl.LinkSetTxQLen(l, 71), nl.LinkSetMTU(l, 1301))
	})
	for c, want := range map[*plugintest.Call]string{
		&first:  `interface "eth0": txQLen is 71, and not 70 as configured`,
		&second: `interface "eth0": mtu is 1301, and not 1300 as configured`,
	} {
		if err := run("CHECK", *c); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// TestFault_F37_CheckWantsAnotherMTUThanTheResultSays: since version 1.1.0 a
// plugin's result can contain the MTU that it has set.
func TestFault_F37_CheckWantsAnotherMTUThanTheResultSays(t *testing.T) {
	h := plugintest.NewHost(t)
	c := callFor(h, fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "podnet", "type": "tuning", "dataDir": %q, "mtu": 1400}`, t.TempDir()))
	result, err := plugintest.Result(ours(h).Must(t, "ADD", c))
	expect.NoError(t, err)
	nettest.Change(t, h.Container, "eth0", func(nl *netlink.Handle, l netlink.Link) error { return nl.LinkSetMTU(l, 1300) })
	for mtu, passes := range map[int]bool{0: false, 1400: false, 1300: true} {
		for _, i := range result.Interfaces {
			if i.Name == "eth0" {
				i.Mtu = mtu
			}
		}
		result.CNIVersion = "1.1.0"
		if c.Prev, err = json.Marshal(result); err != nil {
			t.Fatal(err)
		}
		if _, err := ours(h).Run(t.Context(), "CHECK", c); (err == nil) != passes {
			t.Errorf("the result says an MTU of %d: %v", mtu, err)
		}
	}
}

// TestFault_F58_CheckWantsAnInterfaceThatNobodyMade: if the first plugin makes
// no interface, as for a virtual machine's device, there is none to check.
func TestFault_F58_CheckWantsAnInterfaceThatNobodyMade(t *testing.T) {
	h := plugintest.NewHost(t)
	c := callFor(h, `{"cniVersion": "1.0.0", "name": "podnet", "type": "tuning", "sysctl": {"net.core.somaxconn": "500"}}`)
	c.IfName = "net1"
	c.Prev = []byte(`{"cniVersion": "1.0.0", "interfaces": [{"name": "net1", "socketPath": "/run/vhost.sock"}]}`)
	ours(h).Must(t, "ADD", c)
	ours(h).Must(t, "CHECK", c)
}

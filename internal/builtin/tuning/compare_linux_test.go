package tuning

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/plugin"
)

// with returns the plugin for each type.
func with(p Plugin) func(string) plugin.Plugin { return func(string) plugin.Plugin { return p } }

// changes are the changes that a container may make, and the differences.
func changes() map[string]struct {
	change func(*testing.T, plugintest.Host)
	want   string
} {
	sysctl := func(file, value string) func(*testing.T, plugintest.Host) {
		return func(t *testing.T, h plugintest.Host) {
			expect.NoError(t, h.Container.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/"+file, []byte(value), 0o644) }))
		}
	}
	link := func(f func(*netlink.Handle, netlink.Link) error) func(*testing.T, plugintest.Host) {
		return func(t *testing.T, h plugintest.Host) { nettest.Change(t, h.Container, "eth0", f) }
	}
	attribute := func(name, want, found string) string {
		return fmt.Sprintf(`tuning container interface "%s of eth0": wanted %q, found %q; fix; interface "eth0": %[1]s is %[3]s, and not %[2]s as configured`, name, want, found)
	}
	return map[string]struct {
		change func(*testing.T, plugintest.Host)
		want   string
	}{
		"nothing": {func(*testing.T, plugintest.Host) {}, ""},
		"a sysctl": {sysctl("ip_local_port_range", "2000 3001"),
			`tuning container sysctl "net.ipv4.ip_local_port_range": wanted "2000 3000", found "2000 3001"; fix; sysctl "net.ipv4.ip_local_port_range" is "2000 3001", and not "2000 3000" as configured`},
		"a sysctl of the interface": {sysctl("conf/eth0/arp_filter", "0"),
			`tuning container sysctl "net.ipv4.conf.IFNAME.arp_filter": wanted "1", found "0"; fix; sysctl "net.ipv4.conf.IFNAME.arp_filter" is "0", and not "1" as configured`},
		"mac": {link(func(nl *netlink.Handle, l netlink.Link) error {
			return nl.LinkSetHardwareAddr(l, net.HardwareAddr{2, 0, 0, 0, 0, 0x98})
		}), attribute("mac", "02:00:00:00:00:99", "02:00:00:00:00:98")},
		"promisc":  {link(func(nl *netlink.Handle, l netlink.Link) error { return nl.SetPromiscOff(l) }), attribute("promisc", "true", "false")},
		"mtu":      {link(func(nl *netlink.Handle, l netlink.Link) error { return nl.LinkSetMTU(l, 1401) }), attribute("mtu", "1400", "1401")},
		"allmulti": {link(func(nl *netlink.Handle, l netlink.Link) error { return nl.LinkSetAllmulticastOff(l) }), attribute("allmulti", "true", "false")},
		"txQLen":   {link(func(nl *netlink.Handle, l netlink.Link) error { return nl.LinkSetTxQLen(l, 78) }), attribute("txQLen", "77", "78")},
	}
}

// TestEachChangeIsFoundAndRepairedIfAsked: everything is the container's, so a repair of
// the host leaves it. One of the container makes it as it was, and the backup still has
// the state before the ADD.
func TestEachChangeIsFoundAndRepairedIfAsked(t *testing.T) {
	for _, made := range []string{"ours", "theirs"} {
		for name, tt := range changes() {
			t.Run(made+"/"+name, func(t *testing.T) {
				h, dir := plugintest.NewHost(t), t.TempDir()
				side, c := ours(h), callFor(h, fmt.Sprintf(configured, dir))
				if made == "theirs" {
					side = plugintest.Theirs(t, h.Host)
				}
				// The reference's CHECK compares sysctls including spaces.
				c.Config = strings.Replace(c.Config, "2000 3000", `2000\t3000`, 1)
				before := described(t, h)
				c.Prev = side.Must(t, "ADD", c)
				was := described(t, h)
				tt.change(t, h)
				changed := described(t, h)

				found, left, err := plugintest.Compared(t.Context(), h.Host, with(Plugin{}), c, plugintest.RepairHost)
				if err != nil || found != tt.want || left != tt.want {
					t.Errorf("found\n%s\nleft\n%s\nwant\n%s\n%v", found, left, tt.want, err)
				}
				expect.Same(t, "a repair of the host has changed the container: now", described(t, h), changed)
				if _, left, err = plugintest.Compared(t.Context(), h.Host, with(Plugin{}), c, plugintest.RepairAll); err != nil || left != "" {
					t.Errorf("left\n%s\n%v", left, err)
				}
				expect.Same(t, "now", described(t, h), was)
				side.Must(t, "CHECK", c)
				side.Must(t, "DEL", c)
				expect.Same(t, "after DEL", described(t, h), strings.NewReplacer("[0", "[1", "32768 60999", "2000 3000").Replace(before))
			})
		}
	}
}

// TestWhatCannotBeRepaired is reported with the reason.
func TestWhatCannotBeRepaired(t *testing.T) {
	h := plugintest.NewHost(t)
	side, c := ours(h), callFor(h, fmt.Sprintf(configured, t.TempDir()))
	c.Prev = side.Must(t, "ADD", c)
	nettest.Change(t, h.Container, "eth0", func(nl *netlink.Handle, l netlink.Link) error { return nl.LinkDel(l) })
	const want = `tuning container sysctl "net.ipv4.conf.IFNAME.arp_filter": wanted "1", found ""; no fix: the container has no such sysctl now; ` +
		`sysctl "net.ipv4.conf.IFNAME.arp_filter": open /proc/sys/net/ipv4/conf/eth0/arp_filter: no such file or directory` + "\n" +
		`tuning container interface "eth0": wanted "an interface to change", found ""; no fix: tuning changes the interface of another plugin, and makes none; interface "eth0": no such device`
	if found, left, err := plugintest.Compared(t.Context(), h.Host, with(Plugin{}), c, plugintest.RepairAll); err != nil || found != want || left != want {
		t.Errorf("found\n%s\nleft\n%s\nwant\n%s\n%v", found, left, want, err)
	}
}

// TestARepairObeysTheAllowlist: an administrator may have forbidden a sysctl since.
func TestARepairObeysTheAllowlist(t *testing.T) {
	list := filepath.Join(t.TempDir(), "allowlist.conf")
	h := plugintest.NewHost(t)
	side, c := ours(h), callFor(h, fmt.Sprintf(configured, t.TempDir()))
	c.Prev = side.Must(t, "ADD", c)
	changes()["a sysctl"].change(t, h)
	changed := described(t, h)
	expect.NoError(t, os.WriteFile(list, []byte("^net\\.core\\.\n"), 0o600))
	found, _, err := plugintest.Compared(t.Context(), h.Host, with(Plugin{allowlist: list}), c, plugintest.RepairAll)
	if found != changes()["a sysctl"].want || err == nil || !strings.Contains(err.Error(), "matches no line of it") {
		t.Errorf("found %s, %v", found, err)
	}
	expect.Same(t, "now", described(t, h), changed)
}

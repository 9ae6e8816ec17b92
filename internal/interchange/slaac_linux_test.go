package interchange

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/builtin"
	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/netns"
)

// TestFault_F53_AddressesOfRoutersAreTheReferences: on a LAN whose router
// announces a prefix, a container has the same settings and addresses as with
// the reference plugin. The detection of duplicates is the same too.
func TestFault_F53_AddressesOfRoutersAreTheReferences(t *testing.T) {
	for typ, fields := range map[string]string{
		"macvlan":     `"master": "lan0", "mac": "` + slaacMAC + `"`,
		"host-device": `"device": "lan0"`,
	} {
		for name, ipam := range map[string]string{
			"with addresses": `{"type": "static", "addresses": [{"address": "10.1.0.2/24"}, {"address": "fd00::2/64", "gateway": "fd00::1"}]}`,
			"IPv4 only":      `{"type": "static", "addresses": [{"address": "10.1.0.2/24"}]}`,
			"without":        `{}`,
		} {
			t.Run(typ+"/"+name, func(t *testing.T) {
				t.Parallel()
				config := `{"cniVersion": "1.0.0", "name": "podnet", "type": "` + typ + `", ` + fields + `, "ipam": ` + ipam + `}`
				ours := routedLAN(t, typ, config, func(h *netns.Handle) plugintest.Side { return plugintest.Ours(h, builtin.New()) })
				theirs := routedLAN(t, typ, config, func(h *netns.Handle) plugintest.Side { return plugintest.Theirs(t, h) })
				if ours != theirs {
					t.Errorf("only ours and only theirs:\n%s", lineDiff(theirs, ours))
				}
			})
		}
	}
}

// slaacMAC and the address that it makes from a router's prefix.
const (
	slaacMAC     = "02:00:00:00:00:77"
	slaacAddress = "2001:db8:1::ff:fe00:77/64"
)

// routedLAN adds a container on a LAN with a router, and describes it when it
// has an address of the router's prefix.
func routedLAN(t *testing.T, typ, config string, with func(*netns.Handle) plugintest.Side) string {
	lan := plugintest.NewLAN(t)
	nettest.AddAddress(t, lan.Machine, "switch", "fe80::99/64")
	host, _ := plugintest.NetNS(t)
	lan.Cable(t, host, "lan0")
	if typ == "host-device" {
		mac := expect.Value(net.ParseMAC(slaacMAC))(t)
		nettest.Change(t, host, "lan0", func(nl *netlink.Handle, l netlink.Link) error { return nl.LinkSetHardwareAddr(l, mac) })
	}
	nettest.SetUp(t, host, "lan0")
	c := plugintest.Call{Type: typ, ID: "c1", IfName: "eth0", Config: config}
	var container *netns.Handle
	container, c.NetNS = plugintest.NetNS(t)
	with(host).Must(t, "ADD", c)
	nettest.SetUp(t, container, "eth0") // without IPAM host-device leaves this to the next plugin
	return awaitSLAAC(t, lan.Machine, container)
}

// awaitSLAAC makes the router announce its prefix until the container has
// checked its address for duplicates.
func awaitSLAAC(t *testing.T, router, container *netns.Handle) string {
	t.Helper()
	announce := newRouter(t, router)
	watch := expect.Value(links.WatchAddresses(container))(t)
	defer watch.Close()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		if text, ready := described(t, container); ready {
			return text
		}
		announce()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		_ = watch.Wait(ctx) // or it is time for another announcement
		cancel()
	}
	text, _ := described(t, container)
	t.Fatalf("no address of the router's prefix:\n%s", text)
	return ""
}

// described returns eth0's addresses and settings. It reports whether they
// include the router's and none is tentative any more.
func described(t *testing.T, ns *netns.Handle) (string, bool) {
	t.Helper()
	var lines []string
	found, tentative := false, false
	nettest.Change(t, ns, "eth0", func(nl *netlink.Handle, l netlink.Link) error {
		addrs, err := nl.AddrList(l, netlink.FAMILY_ALL)
		for _, a := range addrs {
			found = found || a.IPNet.String() == slaacAddress
			tentative = tentative || a.Flags&unix.IFA_F_TENTATIVE != 0
			lines = append(lines, fmt.Sprintf("addr %s flags %#x", a.IPNet, a.Flags))
		}
		return err
	})
	expect.NoError(t, ns.Do(func() error {
		files, err := filepath.Glob("/proc/sys/net/ipv6/conf/eth0/*")
		for _, f := range files {
			value, err := os.ReadFile(f)
			if err != nil && filepath.Base(f) != "stable_secret" { // which has no content
				return err
			}
			lines = append(lines, filepath.Base(f)+" = "+strings.TrimSpace(string(value)))
		}
		return err
	}))
	return strings.Join(lines, "\n"), found && !tentative
}

// newRouter returns a function that announces the prefix 2001:db8:1::/64 once
// (RFC 4861, section 4.2).
func newRouter(t *testing.T, ns *netns.Handle) (announce func()) {
	t.Helper()
	var conn net.PacketConn
	expect.NoError(t, ns.Do(func() (err error) {
		config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
			control := func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255)
			}
			if failed := raw.Control(control); failed != nil {
				return failed
			}
			return err
		}}
		conn, err = config.ListenPacket(t.Context(), "ip6:ipv6-icmp", "fe80::99%switch")
		return err
	}))
	t.Cleanup(func() { conn.Close() })
	message := []byte{134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0, // for 1800 s
		3, 4, 64, 0xc0, 0, 0, 0x0e, 0x10, 0, 0, 0x07, 0x08, 0, 0, 0, 0, // on the link, for addresses
		0x20, 0x01, 0x0d, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	return func() {
		t.Helper()
		expect.Value(conn.WriteTo(message, &net.IPAddr{IP: net.ParseIP("ff02::1"), Zone: "switch"}))(t)
	}
}

package portmap

import (
	"fmt"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/plugin"
)

func lookup(string) plugin.Plugin { return Plugin{} }

// host returns a host with a routed container.
func host(t testing.TB) plugintest.Host {
	t.Helper()
	h := plugintest.NewHost(t)
	nettest.Change(t, h.Host, "veth0", func(nl *netlink.Handle, link netlink.Link) error {
		for _, a := range []string{"10.1.0.1/24", "fd00:1::1/64"} {
			addr, err := netlink.ParseAddr(a)
			if err != nil {
				return err
			}
			if err := nl.AddrAdd(link, addr); err != nil {
				return err
			}
		}
		return nil
	})
	return h
}

// result returns a previous result for a container with these addresses. The
// host's own addresses do not belong to the container.
func result(h plugintest.Host, addresses ...string) []byte {
	ips := []string{`{"interface": 0, "address": "10.9.9.9/24"}`}
	for _, a := range addresses {
		ips = append(ips, fmt.Sprintf(`{"interface": 1, "address": %q}`, a))
	}
	return fmt.Appendf(nil, `{"cniVersion": "1.0.0", "interfaces": [{"name": "veth0"}, {"name": "eth0", "sandbox": %q}],
		"ips": [%s], "routes": [{"dst": "0.0.0.0/0"}], "dns": {"nameservers": ["10.1.0.1"]}}`, h.NetNS, strings.Join(ips, ","))
}

func config(options, ports string) string {
	return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "podnet", "type": "portmap", %s "runtimeConfig": {"portMappings": [%s]}}`, options, ports)
}

func port(host int, protocol, hostIP string) string {
	return fmt.Sprintf(`{"hostPort": %d, "containerPort": %d, "protocol": %q, "hostIP": %q}`, host, host%1000+1, protocol, hostIP)
}

// somePorts has ports of all protocols, of each family and of none.
func somePorts() string {
	return strings.Join([]string{
		port(8001, "tcp", ""), port(8002, "udp", ""), port(8003, "sctp", ""), port(8004, "tcp", "127.0.0.1"),
		port(8005, "udp", "0.0.0.0"), port(8006, "tcp", "fd00:99::1"), port(8007, "sctp", "::"),
	}, ",")
}

const (
	v4 = "10.1.0.2/24"
	v6 = "fd00:1::2/64"
)

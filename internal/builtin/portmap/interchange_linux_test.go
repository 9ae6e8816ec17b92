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

// manyPorts has more ports than one rule can hold.
func manyPorts() string {
	ports := []string{somePorts()}
	for i := range 15 {
		ports = append(ports, port(9001+i, "tcp", ""))
	}
	return strings.Join(ports, ",")
}

const (
	v4 = "10.1.0.2/24"
	v6 = "fd00:1::2/64"
)

type setup struct {
	options, ports string
	addresses      []string
}

func setups() map[string]setup {
	const backend = `"backend": "iptables", `
	one := port(8080, "tcp", "")
	both := []string{v4, v6}
	return map[string]setup{
		"one port":                {backend, one, both},
		"IPv4 only":               {backend, one, []string{v4}},
		"IPv6 only":               {backend, one, []string{v6}},
		"many ports":              {backend, manyPorts(), both},
		"no snat":                 {backend + `"snat": false, `, somePorts(), both},
		"masquerade all":          {backend + `"masqAll": true, `, somePorts(), both},
		"another bit":             {backend + `"markMasqBit": 5, `, one, both},
		"another's chain":         {`"externalSetMarkChain": "OTHERS-MARK", `, one, both},
		"conditions":              {backend + `"conditionsV4": ["!", "-d", "192.0.2.0/24"], "conditionsV6": ["-m", "comment", "--comment", "it's \"so\" \\ 1"], `, one, both},
		"two addresses, no ports": {backend, "", []string{v4, "10.1.0.3/24"}},
	}
}

// TestInterchange: ours and theirs make the same objects from the same input,
// and pass on the same result. Each checks and deletes the other one's objects,
// and leaves those of others.
func TestInterchange(t *testing.T) {
	for _, variant := range plugintest.Variants() {
		for name, s := range setups() {
			t.Run(variant+"/"+name, func(t *testing.T) {
				plugintest.UseIPTables(t, variant)
				if variant == "legacy" && (strings.Count(s.ports, "hostPort") > 1 || name == "another bit") {
					// "ip6tables-legacy -C" confuses rules that differ in a
					// port or a mark, so theirs omits some.
					s.addresses = s.addresses[:1]
				}
				h, g := host(t), host(t)
				ours, theirs := plugintest.Ours(h.Host, lookup), plugintest.Theirs(t, g.Host)
				theirsHere, oursThere := plugintest.Theirs(t, h.Host), plugintest.Ours(g.Host, lookup)
				neighbour := plugintest.Call{Type: "portmap", ID: "c", IfName: "eth0", Config: config(`"backend": "iptables", `, port(7000, "tcp", ""))}
				call := plugintest.Call{Type: "portmap", ID: "c1", IfName: "eth0", Config: config(s.options, s.ports)}
				on := func(c plugintest.Call, h plugintest.Host, addresses ...string) plugintest.Call {
					c.NetNS, c.Prev = h.NetNS, result(h, addresses...)
					return c
				}
				for _, host := range []plugintest.Host{h, g} {
					nettest.Run(t, host.Host, "iptables", "-t", "nat", "-N", "OTHERS-MARK")
					nettest.Run(t, host.Host, "ip6tables", "-t", "nat", "-N", "OTHERS-MARK")
				}
				theirsHere.Must(t, "ADD", on(neighbour, h, "10.1.0.9/24", "fd00:1::9/64"))
				theirs.Must(t, "ADD", on(neighbour, g, "10.1.0.9/24", "fd00:1::9/64"))
				before := plugintest.Audit(t, h.Host)

				here, there := on(call, h, s.addresses...), on(call, g, s.addresses...)
				if got, want := h.Portable(t, ours.Must(t, "ADD", here)), g.Portable(t, theirs.Must(t, "ADD", there)); got != want {
					t.Errorf("result:\n%s\nwant:\n%s", got, want)
				}
				plugintest.NoLeak(t, plugintest.Filters(t, g.Host), plugintest.Filters(t, h.Host))
				for _, verb := range []string{"CHECK", "ADD", "CHECK", "DEL", "DEL"} {
					theirsHere.Must(t, verb, here)
					oursThere.Must(t, verb, there)
				}
				plugintest.NoLeak(t, before, plugintest.Audit(t, h.Host))
				plugintest.NoLeak(t, plugintest.Filters(t, h.Host), plugintest.Filters(t, g.Host))
				ours.Must(t, "CHECK", on(neighbour, h, "10.1.0.9/24", "fd00:1::9/64"))

				// Without a previous result and without a namespace.
				ours.Must(t, "ADD", here)
				here.Prev, here.NetNS = nil, ""
				ours.Must(t, "DEL", here)
				plugintest.NoLeak(t, before, plugintest.Audit(t, h.Host))
			})
		}
	}
}

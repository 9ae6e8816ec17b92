package portmap

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/netfilter"
	"github.com/embedcni/cni/netns"
)

func call(h plugintest.Host, options, ports string, addresses ...string) plugintest.Call {
	return plugintest.Call{
		Type: "portmap", ID: "c1", IfName: "eth0", NetNS: h.NetNS, Config: config(options, ports), Prev: result(h, addresses...),
	}
}

// TestConfigurationsThatAreRefused: ours refuses everything that theirs
// refuses, and names the field.
func TestConfigurationsThatAreRefused(t *testing.T) {
	const iptables = `"backend": "iptables", `
	tests := map[string]struct {
		options, ports, want string
		onlyOurs             bool
	}{
		"no such backend":        {`"backend": "pf", `, port(80, "tcp", ""), `backend is "pf"`, false},
		"two ways to mark":       {`"markMasqBit": 1, "externalSetMarkChain": "A", `, "", "externalSetMarkChain and markMasqBit", false},
		"a bit too high":         {`"markMasqBit": 32, `, "", "markMasqBit is 32", false},
		"a bit too low":          {`"markMasqBit": -1, `, "", "markMasqBit is -1", false},
		"a chain with nftables":  {`"backend": "nftables", "externalSetMarkChain": "A", `, "", "externalSetMarkChain for the other one", false},
		"iptables with nftables": {`"backend": "nftables", "conditionsV4": ["-i", "lo"], `, "", "conditionsV4 for the other one", false},
		"nftables with iptables": {iptables + `"conditionsV6": ["iifname", "lo"], `, "", "conditionsV6 for the other one", false},
		"both":                   {`"conditionsV4": ["-i", "lo"], "conditionsV6": ["iifname", "lo"], `, "", "conditionsV4 are for the backend iptables", false},
		"no container port":      {iptables, `{"hostPort": 80, "protocol": "tcp"}`, "invalid container port number: 0", false},
		"no host port":           {iptables, `{"containerPort": 80, "protocol": "tcp"}`, "invalid host port number: 0", false},
		"a negative port":        {iptables, `{"hostPort": -1, "containerPort": 80, "protocol": "tcp"}`, "invalid host port number: -1", false},
		"a port too high":        {iptables, `{"hostPort": 65536, "containerPort": 80, "protocol": "tcp"}`, "invalid host port number: 65536", false},
		"a container's too high": {iptables, `{"hostPort": 80, "containerPort": 65536, "protocol": "tcp"}`, "invalid container port number: 65536", false},
		"no protocol":            {iptables, port(80, "", ""), `protocol of host port 80 is ""`, false},
		"another protocol":       {iptables, port(80, "icmp", ""), `protocol of host port 80 is "icmp"`, false},
		"no address":             {iptables, port(80, "tcp", "host"), `hostIP of host port 80 is no IP address: "host"`, true},
		"no configuration":       {`"backend": 1, `, "", "portmap", false},
	}
	plugintest.UseIPTables(t, "nft")
	h, g := host(t), host(t)
	before := plugintest.Filters(t, h.Host)
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			verbs := []string{"ADD", "CHECK", "DEL"}
			if tt.options == iptables {
				// ADD made nothing for a refused port, and that must not stop
				// the DEL of the chain.
				verbs = verbs[:2]
				plugintest.Ours(h.Host, lookup).Must(t, "DEL", call(h, tt.options, tt.ports, v4))
			}
			for _, verb := range verbs {
				err := plugintest.Ours(h.Host, lookup).MustFail(t, verb, call(h, tt.options, tt.ports, v4))
				if !strings.Contains(err.Error(), tt.want) {
					t.Errorf("%s: %v, want %s", verb, err, tt.want)
				}
			}
			if !tt.onlyOurs {
				plugintest.Theirs(t, g.Host).MustFail(t, "ADD", call(g, tt.options, tt.ports, v4))
			}
		})
	}
	plugintest.NoLeak(t, before, plugintest.Filters(t, h.Host))
}

// TestOnlyExecutable: fields that this module's rules cannot express go to the executable.
func TestOnlyExecutable(t *testing.T) {
	for config, field := range map[string]string{
		`{}`: "", `{"backend": "nftables"}`: "", `{"conditionsV4": [""], "conditionsV6": []}`: "", `{"backend": 1}`: "",
		`{"backend": "iptables"}`:                                 `"backend": "iptables"`,
		`{"externalSetMarkChain": "A"}`:                           `"externalSetMarkChain"`,
		`{"markMasqBit": 5}`:                                      `"markMasqBit"`,
		`{"conditionsV6": ["!", "-i", "lo"]}`:                     `"conditionsV6"`,
		`{"backend": "nftables", "conditionsV4": ["iifname lo"]}`: `"conditionsV4"`,
	} {
		err := Plugin{}.OnlyExecutable(json.RawMessage(config))
		want := "plugin portmap: " + field + ` needs the plugin's executable, because the built-in plugin has its rules in nftables: install "portmap" in a plugin directory, or remove the field`
		if (err == nil) != (field == "") || err != nil && (err.Error() != want || plugintest.Code(err) != 7) {
			t.Errorf("%s: %v", config, err)
		}
	}
	h := host(t)
	before := plugintest.Filters(t, h.Host)
	err := plugintest.Ours(h.Host, lookup).MustFail(t, "ADD", call(h, `"backend": "iptables", `, port(8080, "tcp", ""), v4))
	if !strings.Contains(err.Error(), "needs the plugin's executable") {
		t.Error(err)
	}
	plugintest.NoLeak(t, before, plugintest.Filters(t, h.Host))
}

func TestCall(t *testing.T) {
	no, yes := false, "OTHERS"
	c := conf{SNAT: &no, MasqAll: true, ExternalSetMarkChain: &yes, ConditionsV4: []string{"-i", "lo"}, ConditionsV6: []string{""}}
	c.RuntimeConfig.PortMappings = []mapping{
		{8080, 80, "TCP", ""}, {8053, 53, "udp", "::ffff:192.0.2.1"}, {8081, 81, "sctp", "fd00::1"},
	}
	want := request{only: `"externalSetMarkChain"`}
	for _, p := range []netfilter.HostPort{
		{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"},
		{HostIP: netip.MustParseAddr("192.0.2.1"), HostPort: 8053, ContainerPort: 53, Protocol: "udp"},
		{HostIP: netip.MustParseAddr("fd00::1"), HostPort: 8081, ContainerPort: 81, Protocol: "sctp"},
	} {
		want.rules = append(want.rules, netfilter.Rule{Kind: netfilter.Publish, Port: p, MasqAll: true, Conditional: true})
	}
	expect.Same(t, "call", expect.Value(c.call(false))(t), want)
}

// TestAddLetsLoopbackAddressesReachTheContainer: packets from loopback
// addresses may leave through the container's interface only if the answers are
// masqueraded.
func TestAddLetsLoopbackAddressesReachTheContainer(t *testing.T) {
	read := func(h plugintest.Host, name string) (value string) {
		t.Helper()
		expect.NoError(t, h.Host.Do(func() error {
			b, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + name + "/route_localnet")
			value = strings.TrimSpace(string(b))
			return err
		}))
		return value
	}
	plugintest.UseIPTables(t, "nft")
	for name, tt := range map[string]struct {
		options string
		address string
		want    string
	}{
		"snat": {"", v4, "1"}, "no snat": {`"snat": false, `, v4, "0"}, "IPv6": {"", v6, "0"}, "no route": {"", "192.0.2.1/24", "0"},
	} {
		t.Run(name, func(t *testing.T) {
			h := host(t)
			for range 2 {
				plugintest.Ours(h.Host, lookup).Must(t, "ADD", call(h, tt.options, port(8080, "tcp", ""), tt.address))
			}
			theirs := host(t)
			plugintest.Theirs(t, theirs.Host).Must(t, "ADD", call(theirs, `"backend": "iptables", `+tt.options, port(8080, "tcp", ""), tt.address))
			got := []string{read(h, "veth0"), read(h, "lo"), read(theirs, "veth0"), read(theirs, "lo")}
			if want := []string{tt.want, "0", tt.want, "0"}; !slices.Equal(got, want) {
				t.Errorf("route_localnet is %q, want %q", got, want)
			}
		})
	}
}

// flow is a conntrack entry from a client to a port of the host.
type flow struct {
	proto uint8
	dst   string
	port  uint16
}

func track(t *testing.T, ns *netns.Handle, flows []flow) {
	t.Helper()
	conntrack(t, ns, func(nl *netlink.Handle) error {
		for i, f := range flows {
			dst, client, family := netip.MustParseAddr(f.dst), "192.0.2.9", uint8(unix.AF_INET)
			if dst.Is6() {
				client, family = "2001:db8::9", unix.AF_INET6
			}
			raw := func(s string) net.IP { return netip.MustParseAddr(s).AsSlice() }
			there := netlink.IPTuple{Protocol: f.proto, SrcIP: raw(client), SrcPort: uint16(40000 + i), DstIP: raw(f.dst), DstPort: f.port}
			back := netlink.IPTuple{Protocol: f.proto, SrcIP: raw(f.dst), SrcPort: f.port, DstIP: raw(client), DstPort: uint16(40000 + i)}
			entry := &netlink.ConntrackFlow{FamilyType: family, TimeOut: 600, Forward: there, Reverse: back}
			if f.proto == unix.IPPROTO_TCP {
				const established = 3 // TCP_CONNTRACK_ESTABLISHED
				entry.ProtoInfo = &netlink.ProtoInfoTCP{State: established}
			}
			if err := nl.ConntrackCreate(netlink.ConntrackTable, netlink.InetFamily(family), entry); err != nil {
				return fmt.Errorf("flow %v: %w", f, err)
			}
		}
		return nil
	})
}

func tracked(t *testing.T, ns *netns.Handle) (all []flow) {
	t.Helper()
	conntrack(t, ns, func(nl *netlink.Handle) error {
		for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
			entries, err := nl.ConntrackTableList(netlink.ConntrackTable, family)
			if err != nil {
				return err
			}
			for _, e := range entries {
				all = append(all, flow{e.Forward.Protocol, e.Forward.DstIP.String(), e.Forward.DstPort})
			}
		}
		return nil
	})
	slices.SortFunc(all, func(a, b flow) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	return all
}

func conntrack(t *testing.T, ns *netns.Handle, fn func(*netlink.Handle) error) {
	t.Helper()
	expect.NoError(t, ns.Do(func() error {
		nl, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		defer nl.Close()
		return fn(nl)
	}))
}

// TestFault_F28_UDPFlowsAreForgotten: UDP flows to a newly forwarded or no
// longer forwarded port are deleted. Flows to other ports and of other
// protocols stay.
func TestFault_F28_UDPFlowsAreForgotten(t *testing.T) {
	plugintest.UseIPTables(t, "nft")
	const udp, tcp = unix.IPPROTO_UDP, unix.IPPROTO_TCP
	stale := []flow{{udp, "192.0.2.1", 8053}, {udp, "2001:db8::1", 8053}}
	others := []flow{{tcp, "192.0.2.1", 8053}, {udp, "192.0.2.1", 8054}, {udp, "192.0.2.1", 8080}}
	ports := port(8053, "udp", "") + "," + port(8080, "tcp", "")
	for _, backend := range []string{`"backend": "nftables", `, ""} {
		t.Run(backend, func(t *testing.T) {
			h, elsewhere := host(t), host(t)
			ours := plugintest.Ours(h.Host, lookup)
			track(t, elsewhere.Host, stale)
			dual := call(h, backend, ports, v4, v6)
			unknown := dual
			unknown.Prev = nil
			for _, step := range []struct {
				verb string
				call plugintest.Call
			}{{"ADD", dual}, {"DEL", dual}, {"ADD", dual}, {"DEL", unknown}} {
				track(t, h.Host, slices.Concat(stale, others))
				ours.Must(t, step.verb, step.call)
				got := tracked(t, h.Host)
				if len(got) != len(others) || slices.ContainsFunc(got, func(f flow) bool { return !slices.Contains(others, f) }) {
					t.Errorf("after %s there are %v, want %v", step.verb, got, others)
				}
				conntrack(t, h.Host, func(nl *netlink.Handle) error { return nl.ConntrackTableFlush(netlink.ConntrackTable) })
			}
			if got := tracked(t, elsewhere.Host); len(got) != len(stale) {
				t.Errorf("on another host there are %v, want %v", got, stale)
			}
		})
	}
}

// TestWithoutABackend: without a named backend, ours uses this module's own
// nftables table.
func TestWithoutABackend(t *testing.T) {
	plugintest.UseIPTables(t, "nft")
	h := host(t)
	ours := plugintest.Ours(h.Host, lookup)
	c := call(h, "", somePorts(), v4, v6)
	before := plugintest.Filters(t, h.Host)
	ours.Must(t, "ADD", c)
	ours.Must(t, "CHECK", c)
	for _, line := range plugintest.Filters(t, h.Host) {
		if strings.HasPrefix(line, "ip") {
			t.Errorf("in iptables: %s", line)
		}
	}
	c.Prev, c.NetNS = nil, ""
	for range 2 {
		ours.Must(t, "DEL", c)
	}
	c = call(h, "", somePorts(), v4, v6)
	ours.MustFail(t, "CHECK", c)
	more := plugintest.Filters(t, h.Host).Without(func(l string) bool { return slices.Contains(before, l) })
	if more = more.Without(func(l string) bool { return !strings.HasPrefix(l, "nft element") }); more != nil {
		t.Errorf("left:\n%s", strings.Join(more, "\n"))
	}
}

// TestWithoutPorts: without ports there is nothing to do, whatever else is
// configured.
func TestWithoutPorts(t *testing.T) {
	h := host(t)
	ours := plugintest.Ours(h.Host, lookup)
	before := plugintest.Filters(t, h.Host)
	c := call(h, "", "", v4, v6)
	for _, verb := range []string{"ADD", "CHECK", "DEL"} {
		ours.Must(t, verb, c)
	}
	plugintest.NoLeak(t, before, plugintest.Filters(t, h.Host))
	c.Prev = nil
	for _, verb := range []string{"ADD", "CHECK"} {
		if err := ours.MustFail(t, verb, c); plugintest.Code(err) != 7 {
			t.Errorf("%s: %v", verb, err)
		}
	}
}

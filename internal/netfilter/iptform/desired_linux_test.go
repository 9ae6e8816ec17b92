package iptform

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
)

// textOf returns the input that makes all of the rules in an empty family.
func textOf(t *testing.T, r fwrules.Rules, v6 bool) string {
	t.Helper()
	var s iptables.Script
	w := desiredOf(r, v6)
	for _, table := range []string{tableNAT, tableFilter} {
		must(t, w.additions(&s, table, facts{}, func(desiredRule) state { return absent }, false, &desired{}))
	}
	text, _ := s.Render()
	return text
}

func TestDesired(t *testing.T) {
	o := fwrules.Owner{Network: "podnet", ContainerID: "c1", IfName: "eth0"}
	v4, v6 := netip.MustParsePrefix("10.1.0.2/24"), netip.MustParsePrefix("fd00:1::2/64")
	tests := map[string]struct {
		rules fwrules.Rules
		v6    bool
		want  string
	}{
		"nothing": {fwrules.Rules{}, false, "COMMIT\n"},
		"masquerade": {fwrules.Rules{Masquerade: []fwrules.Masquerade{{Owner: o, Addresses: []netip.Prefix{v4, v6}}}}, true, `*nat
-N {masq}
-A {masq} -d fd00:1::/64 -j ACCEPT {comment}
-A {masq} ! -d ff00::/8 -j MASQUERADE {comment}
-A POSTROUTING -s fd00:1::2 -j {masq} {comment}
COMMIT
`},
		"ports": {fwrules.Rules{HostPorts: []fwrules.HostPorts{{
			Owner: o, V4: v4, V6: v6, SNAT: true, MarkMasqBit: 13, ConditionsV4: []string{"!", "-d", "192.0.2.0/24"},
			Ports: []fwrules.HostPort{
				{HostIP: netip.Addr{}, HostPort: 8080, ContainerPort: 80, Protocol: "tcp"}, {HostIP: netip.MustParseAddr("127.0.0.1"), HostPort: 8053, ContainerPort: 53, Protocol: "udp"},
				{HostIP: netip.IPv4Unspecified(), HostPort: 8081, ContainerPort: 81, Protocol: "tcp"}, {HostIP: netip.IPv6Unspecified(), HostPort: 8082, ContainerPort: 82, Protocol: "tcp"},
			},
		}}}, false, `*nat
-N CNI-HOSTPORT-SETMARK
-N CNI-HOSTPORT-MASQ
-N CNI-HOSTPORT-DNAT
-N {dnat}
-A CNI-HOSTPORT-SETMARK -m comment --comment "CNI portfwd masquerade mark" -j MARK --set-xmark 0x2000/0x2000
-A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE
-I POSTROUTING -m comment --comment "CNI portfwd requiring masquerade" -j CNI-HOSTPORT-MASQ
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A {dnat} -p tcp --dport 8080 -s 10.1.0.0/24 -j CNI-HOSTPORT-SETMARK
-A {dnat} -p tcp --dport 8080 -s 127.0.0.1 -j CNI-HOSTPORT-SETMARK
-A {dnat} -p tcp --dport 8080 -j DNAT --to-destination 10.1.0.2:80
-A {dnat} -p udp --dport 8053 -d 127.0.0.1 -s 10.1.0.0/24 -j CNI-HOSTPORT-SETMARK
-A {dnat} -p udp --dport 8053 -d 127.0.0.1 -s 127.0.0.1 -j CNI-HOSTPORT-SETMARK
-A {dnat} -p udp --dport 8053 -d 127.0.0.1 -j DNAT --to-destination 10.1.0.2:53
-A {dnat} -p tcp --dport 8081 -s 10.1.0.0/24 -j CNI-HOSTPORT-SETMARK
-A {dnat} -p tcp --dport 8081 -s 127.0.0.1 -j CNI-HOSTPORT-SETMARK
-A {dnat} -p tcp --dport 8081 -j DNAT --to-destination 10.1.0.2:81
-A CNI-HOSTPORT-DNAT {dnat comment} -m multiport -p tcp --destination-ports 8080,8081,8082 ! -d 192.0.2.0/24 -j {dnat}
-A CNI-HOSTPORT-DNAT {dnat comment} -m multiport -p udp --destination-ports 8053 ! -d 192.0.2.0/24 -j {dnat}
COMMIT
`},
		"isolated": {fwrules.Rules{Forward: []fwrules.Forward{{Owner: o, Addresses: []netip.Addr{v4.Addr()}, Ingress: "isolated", Bridge: "br1"}}}, false, `*filter
-N CNI-FORWARD
-N CNI-ADMIN
-N CNI-ISOLATION-STAGE-1
-N CNI-ISOLATION-STAGE-2
-I FORWARD -m comment --comment "CNI firewall plugin rules" -j CNI-FORWARD
-I CNI-FORWARD -m comment --comment "CNI firewall plugin admin overrides" -j CNI-ADMIN
-A CNI-FORWARD -d 10.1.0.2/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A CNI-FORWARD -s 10.1.0.2/32 -j ACCEPT
-I FORWARD -j CNI-ISOLATION-STAGE-1 -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)"
-I CNI-ISOLATION-STAGE-1 -i br1 ! -o br1 -j CNI-ISOLATION-STAGE-2 -m comment --comment "CNI firewall plugin rules (ingressPolicy: isolated)"
-I CNI-ISOLATION-STAGE-1 -i br1 -o br1 -j DROP -m comment --comment "CNI firewall plugin rules (ingressPolicy: isolated)"
-A CNI-ISOLATION-STAGE-1 -j RETURN -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)"
-I CNI-ISOLATION-STAGE-2 -o br1 -j DROP -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)"
-A CNI-ISOLATION-STAGE-2 -j RETURN -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)"
COMMIT
`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got, want := textOf(t, tt.rules, tt.v6), words().Replace(tt.want); got != want {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

func TestCanonical(t *testing.T) {
	for args, want := range map[string]string{
		"-d 10.1.0.0/24 -j ACCEPT -m comment --comment x":                     "-d 10.1.0.0/24 -m comment --comment x -j ACCEPT",
		"! -d 224.0.0.0/4 -j MASQUERADE -m comment --comment x":               "! -d 224.0.0.0/4 -m comment --comment x -j MASQUERADE",
		"-p tcp --dport 80 -d 127.0.0.1 -s 10.1.0.0/24 -j A":                  "-s 10.1.0.0/24 -d 127.0.0.1/32 -p tcp -m tcp --dport 80 -j A",
		"-p udp --dport 80 -s ::/0 -j A":                                      "-p udp -m udp --dport 80 -j A",
		"-m multiport -p tcp --destination-ports 1,2 -j A":                    "-p tcp -m multiport --dports 1,2 -j A",
		"-p tcp --dport 80 -j DNAT --to-destination [fd00::2]:80":             "-p tcp -m tcp --dport 80 -j DNAT --to-destination [fd00::2]:80",
		"-i br1 ! -o br1 -j A -m comment --comment x":                         "-i br1 ! -o br1 -m comment --comment x -j A",
		"-m comment --comment x -j MARK --set-xmark 0x2000/0x2000":            "-m comment --comment x -j MARK --set-xmark 0x2000/0x2000",
		"-d fd00::2/128 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT": "-d fd00::2/128 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
		"-j": "-j",
		"!":  "!",
	} {
		if got := strings.Join(iptables.Canonical(strings.Fields(args)), " "); got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", args, got, want)
		}
	}
}

func TestState(t *testing.T) {
	w := desiredOf(everything("c1", 4), false)
	states := func(f facts) string {
		var all strings.Builder
		for _, r := range w.rules {
			all.WriteString([]string{"?", "-", "+"}[f.state(w, r)])
		}
		return all.String()
	}
	chains := make(map[iptables.ChainID]bool)
	for _, c := range w.chains {
		if c.shared {
			chains[c.ChainID] = true
		}
	}
	// Masquerading's three; the mark, and its use; the jumps to the ports; the
	// container's ports, and the jump to them; the jumps for forwarding; the
	// container's address.
	const nothing, others = "---" + "---" + "--" + "---" + "-" + "--" + "--", "---" + "??+" + "++" + "---" + "-" + "++" + "--"
	if got := states(facts{}); got != nothing {
		t.Errorf("where nothing is: %s, want %s", got, nothing)
	}
	f := facts{chains: chains, jumps: w.sharedJumps()}
	if got := states(f); got != others || !f.allShared(w) {
		t.Errorf("beside others: %s, want %s; all that is shared: %t", got, others, f.allShared(w))
	}
	f.jumps = map[iptables.ChainID][]string{}
	if f.allShared(w) {
		t.Error("the jumps are missing, and all that is shared is there")
	}
	f = facts{chains: chains, jumps: w.sharedJumps(), addrs: map[netip.Addr]struct{}{netip.MustParseAddr("10.1.0.4"): {}}}
	if got, want := states(f), others[:len(others)-2]+"??"; got != want || f.allShared(w) {
		t.Errorf("where something is about the address: %s, want %s", got, want)
	}
}

// everything returns the rules of a container whose network has all features.
func everything(id string, n int) fwrules.Rules {
	o := fwrules.Owner{Network: "podnet", ContainerID: id, IfName: "eth0"}
	v4 := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)}), 16)
	v6 := netip.MustParsePrefix(fmt.Sprintf("fd00:1::%x/64", n))
	ports := []fwrules.HostPort{{HostPort: uint16(10000 + n), ContainerPort: 80, Protocol: "tcp"}}
	return fwrules.Rules{
		Masquerade: []fwrules.Masquerade{{Owner: o, Addresses: []netip.Prefix{v4, v6}}},
		HostPorts:  []fwrules.HostPorts{{Owner: o, V4: v4, V6: v6, Ports: ports, SNAT: true, MarkMasqBit: 13}},
		Forward:    []fwrules.Forward{{Owner: o, Addresses: []netip.Addr{v4.Addr(), v6.Addr()}}},
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

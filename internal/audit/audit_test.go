package audit

import (
	"reflect"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

func TestDiffCountsLines(t *testing.T) {
	before := Lines{"a", "a", "b", "c"}
	after := Lines{"a", "c", "c", "d", "d"}
	added, removed := Diff(before, after)
	expect.Same(t, "difference", [2]Lines{added, removed}, ([2]Lines{{"c", "d", "d"}, {"a", "b"}}))
	added, removed = Diff(before, before)
	expect.That(t, added == nil && removed == nil, "of equals: %v, %v", added, removed)
}

func TestWithout(t *testing.T) {
	expect.Same(t, "lines", Lines{"a", "b", "a"}.Without(func(l string) bool { return l == "a" }), Lines{"b"})
}

func TestParseRuleset(t *testing.T) {
	const out = `# Warning: table ip nat is managed by iptables-nft, do not touch!
table ip nat {
	chain POSTROUTING {
		type nat hook postrouting priority srcnat; policy accept;
		counter packets 1 bytes 2 masquerade
	}
}
table inet t {
	comment "a { b"
	ct helper h {
		type "ftp" protocol tcp
	}

	map m {
		type ipv4_addr . inet_service : verdict
		elements = { 10.0.0.1 . 80 timeout 1h expires 59m3s comment "x, } y" : goto c,
			     10.0.0.2 . 80 : drop }
	}

	chain c {
		comment "all of it"
		tcp dport { 80, 443 } accept comment "a {"
	}
}
`
	want := []string{
		`nft table inet t`,
		`nft table inet t comment "a { b"`,
		`nft ct inet t helper h`,
		`nft ct inet t helper h type "ftp" protocol tcp`,
		`nft map inet t m`,
		`nft map inet t m type ipv4_addr . inet_service : verdict`,
		`nft element inet t m 10.0.0.1 . 80 timeout 1h comment "x, } y" : goto c`,
		`nft element inet t m 10.0.0.2 . 80 : drop`,
		`nft chain inet t c`,
		`nft chain inet t c comment "all of it"`,
		`nft rule inet t c tcp dport { 80, 443 } accept comment "a {"`,
	}
	got := parseRuleset(out, map[string]bool{"ip nat": true})
	expect.That(t, reflect.DeepEqual([]string(got), want), "got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
}

func TestShared(t *testing.T) {
	const hash = "CNI-DN-6f8bb2e8c4d0e9ab8d1c2"
	for _, tt := range []struct {
		shared, own string // a near miss
	}{
		{`link cni0 type bridge mtu 1500 up`, `link bridge type veth master cni0 mtu 1500 up`},
		{`addr cni0 type bridge 10.1.0.1/24`, `addr veth1 type veth 10.1.0.1/24`},
		{`route 10.1.0.0/24 dev cni0 type bridge proto kernel scope link src 10.1.0.1`, `route 10.1.0.2/32 dev veth1 type veth proto boot scope link`},
		{`route fd00::/64 dev cni0 type bridge proto kernel metric 256`, `route 10.1.0.2/32 dev cni0 type bridge proto boot scope link`},
		{`dir /var/lib/cni/networks/podnet/ host-local`, `dir /var/lib/cni/networks/podnet/`},
		{`dir /var/lib/cni/results/`, `file /var/lib/cni/results/podnet-id-eth0 sha256:00`},
		{`dir /var/lib/cni/flannel/`, `file /var/lib/cni/flannel/c1 sha256:00`},
		{`file /n/podnet/lock host-local`, `file /n/podnet/lock sha256:00`},
		{`file /n/podnet/last_reserved_ip.0 host-local`, `file /n/podnet/10.1.0.2 sha256:00`},
		{`file /s/attachments/ledger.0123456789abcdef ledger`, `file /s/attachments/0123456789abcdef.json sha256:00`},
		{`iptables-nft nat -N CNI-HOSTPORT-DNAT`, `iptables-nft nat -N ` + hash},
		{`iptables nat -N CNI-HOSTPORT-SETMARK`, `iptables nat -N CNI-HOSTPORT-SETMARK2`},
		{`ip6tables-legacy nat -N CNI-HOSTPORT-MASQ`, `ip6tables-legacy filter -N CNI-HOSTPORT-MASQ`},
		{`iptables-nft nat -A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT`, `iptables-nft nat -A PREROUTING -m addrtype --dst-type LOCAL -j ` + hash},
		{`iptables-nft nat -A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT`,
			`iptables-nft nat -A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"podnet\" id: \"c1\"" -m multiport --dports 8080 -j ` + hash},
		{`iptables-nft nat -A POSTROUTING -m comment --comment "CNI portfwd requiring masquerade" -j CNI-HOSTPORT-MASQ`,
			`iptables-nft nat -A POSTROUTING -s 10.1.0.2/32 -m comment --comment "name: \"podnet\" id: \"c1\"" -j CNI-6f8bb2e8c4d0e9ab8d1c2f3a`},
		{`iptables-nft nat -A CNI-HOSTPORT-SETMARK -m comment --comment "CNI portfwd masquerade mark" -j MARK --set-xmark 0x2000/0x2000`,
			`iptables-nft nat -A ` + hash + ` -s 10.1.0.0/24 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK`},
		{`iptables-nft nat -A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE`, `iptables-nft nat -A CNI-HOSTPORT-MASQ -s 10.1.0.2/32 -m mark --mark 0x2000/0x2000 -j MASQUERADE`},
		{`iptables-nft filter -N CNI-FORWARD`, `iptables-nft filter -A CNI-FORWARD -s 10.1.0.2/32 -j ACCEPT`},
		{`iptables-nft filter -N CNI-ADMIN`, `iptables-nft filter -A CNI-FORWARD -d 10.1.0.2/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT`},
		{`iptables-nft filter -A FORWARD -m comment --comment "CNI firewall plugin rules" -j CNI-FORWARD`, `iptables-nft filter -A FORWARD -s 10.1.0.2/32 -m comment --comment "CNI firewall plugin rules" -j CNI-FORWARD`},
		{`iptables-nft filter -A CNI-FORWARD -m comment --comment "CNI firewall plugin admin overrides" -j CNI-ADMIN`, `iptables-nft filter -A CNI-ADMIN -s 10.1.0.2/32 -j DROP`},
		{`iptables-nft filter -A CNI-ISOLATION-STAGE-1 -i cni0 ! -o cni0 -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge)" -j CNI-ISOLATION-STAGE-2`,
			`iptables-nft filter -A CNI-ISOLATION-STAGE-1 -s 10.1.0.2/32 -i cni0 ! -o cni0 -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge)" -j CNI-ISOLATION-STAGE-2`},
		{`nft table ip cni_hostport`, `nft table ip cni_hostport2`},
		{`nft chain ip6 cni_hostport hostports`, `nft rule ip cni_hostport hostports tcp dport 8080 dnat to 10.1.0.2:80 comment "c1"`},
		{`nft rule ip cni_hostport prerouting fib daddr type local jump hostports_all`, `nft rule ip cni_hostport prerouting tcp dport 80 comment "fib daddr type local jump hostports_all"`},
		{`nft chain ip cni_hostport masquerading type nat hook postrouting priority srcnat; policy accept;`, `nft rule ip cni_hostport masquerading ip saddr 127.0.0.1 ip daddr 10.1.0.2 masquerade comment "c1"`},
		{`nft rule inet cni_plugins_masquerade postrouting goto masq_checks`, `nft rule inet cni_plugins_masquerade masq_checks ip saddr 10.1.0.2 ip daddr != 10.1.0.0/24 masquerade comment "x"`},
		{`nft chain bridge nat PREROUTING type filter hook prerouting priority dstnat; policy accept;`, `nft chain bridge nat cni-br-iface-c1-eth0`},
		{`nft table bridge nat`, `nft rule bridge nat PREROUTING iifname "veth1" jump cni-br-iface-c1-eth0 comment "macspoofchk-c1-eth0"`},
	} {
		expect.That(t, Shared(tt.shared), "not shared: %s", tt.shared)
		expect.That(t, !Shared(tt.own), "shared: %s", tt.own)
	}
	for _, own := range []string{"", "link", "addr x", "route 10.0.0.0/8", "process bridge: bridge", "fd socket", "netns /run/netns/a none", "missing nft"} {
		expect.That(t, !Shared(own), "shared: %q", own)
	}
}

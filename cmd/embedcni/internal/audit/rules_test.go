package audit

import (
	"net/netip"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// Of each rule that CNI may have made, it is known which container it names. The forms are
// those of the reference plugins and of the built-in ones.
func TestRules(t *testing.T) {
	index := newIndex()
	index.recorded["on"] = true
	index.addresses[netip.MustParseAddr("10.1.0.2")] = "on"
	index.addresses[netip.MustParseAddr("fd00::2")] = "on"
	index.cached["cached"] = cachedResult{addresses: []netip.Addr{netip.MustParseAddr("10.1.0.9")}}
	index.hash("net", "on")
	index.hash("net", "ghost")
	index.reserved[netip.MustParseAddr("10.1.0.7")] = "ghost"
	dnat, ghosts := hashedNames("net", "on")[1], hashedNames("net", "ghost")[1]
	for _, c := range []struct {
		line string
		want *claim // nil: it is of no interest, or of a container on record
	}{
		{"iptables-nft filter -A INPUT -s 10.9.0.1/32 -j DROP", nil},
		{"nft rule ip filter forward ip saddr 10.9.0.1 drop", nil},
		{"iptables-nft filter -A CNI-ADMIN -s 10.9.0.1/32 -j DROP", nil},
		{"iptables-nft nat -N " + dnat, nil},
		{"iptables-nft nat -A " + dnat + " -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.1.0.2:80", nil},
		{"iptables-nft filter -A CNI-FORWARD -s 10.1.0.2/32 -j ACCEPT", nil},
		{`iptables-nft filter -A CNI-FORWARD -s 10.1.0.0/24 -m comment --comment "embedcni fe00-9a0995: from 10.1.0.0/24" -j ACCEPT`, nil},
		{`nft rule inet cni_plugins_masquerade masq_checks ip6 saddr fd00::2 ip6 daddr != fd00::/64 masquerade comment "0123-4567, net: net, if: eth0, id: on"`, nil},
		{`nft element inet embedcni containers4 10.9.0.1 comment "0123-4567, net: net, if: eth0, id: off"`,
			&claim{Finding{Network: "net", IfName: "eth0", ContainerID: "off"}, addrs("10.9.0.1")}},
		{`iptables-nft nat -A POSTROUTING -s 10.9.0.1/32 -m comment --comment "name: \"net\" id: \"off\"" -j CNI-0123456789abcdef01234567`,
			&claim{Finding{Network: "net", ContainerID: "off"}, addrs("10.9.0.1")}},
		{`nft rule ip cni_hostport hostports tcp dport 8080 dnat to 10.9.0.1:80 comment "off"`,
			&claim{Finding{ContainerID: "off"}, nil}},
		{"iptables-nft nat -A " + ghosts + " -s 127.0.0.1/32 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK",
			&claim{Finding{ContainerID: "ghost"}, nil}},
		{"iptables-nft filter -A CNI-FORWARD -s 10.1.0.7/32 -j ACCEPT",
			&claim{Finding{ContainerID: "ghost"}, addrs("10.1.0.7")}},
		{"iptables-nft nat -A CNI-0000000000000000000000aa -j RETURN",
			&claim{Finding{ContainerID: "off"}, nil}},
		{"iptables-nft filter -A CNI-FORWARD -s 10.1.0.9/32 -j ACCEPT",
			&claim{Finding{ContainerID: "cached"}, addrs("10.1.0.9", "10.1.0.9")}},
		{"ip6tables-nft filter -A CNI-FORWARD -d fd00::9/128 -j ACCEPT",
			&claim{Finding{Detail: "it is a rule of CNI, and names nothing that a container on record or in libcni's cache has"}, addrs("fd00::9")}},
	} {
		a := &auditor{index: index}
		a.learn([]string{`iptables-nft nat -A POSTROUTING -m comment --comment "name: \"net\" id: \"off\"" -j CNI-0000000000000000000000aa`})
		a.rule(c.line)
		var want []claim
		if c.want != nil {
			c.want.Kind, c.want.Object = "rule", c.line
			want = []claim{*c.want}
		}
		expect.Same(t, c.line, a.claims, want)
	}
}

func addrs(texts ...string) (all []netip.Addr) {
	for _, s := range texts {
		all = append(all, netip.MustParseAddr(s))
	}
	return all
}

// The names are those of the reference plugins, pkg/utils.
func TestHashedNames(t *testing.T) {
	expect.Same(t, "names", hashedNames("test", "1234"), []string{
		"CNI-2bbe0c48b91a7d1b8a6753a8", // of utils.FormatChainName("test", "1234"), from its own test
		"CNI-DN-2bbe0c48b91a7d1b8a675", "CNI-SN-2bbe0c48b91a7d1b8a675", "bwp2bbe0c48b91a",
	})
}

// What is claimed is nobody's only if nothing shows that its container lives, and nothing is
// hidden.
func TestSettle(t *testing.T) {
	ghost := Finding{Kind: "reservation", Object: "10.1.0.3", ContainerID: "ghost", Network: "net", IfName: "eth0"}
	other := Finding{Kind: "rule", Object: "a rule", ContainerID: "ghost"}
	for _, c := range []struct {
		name  string
		alive bool // by libcni's cache
		in    namespaces
		want  Whose
	}{
		{"nothing shows it", false, namespaces{}, Nobody},
		{"another address", false, namespaces{addresses: map[netip.Addr]string{netip.MustParseAddr("10.1.0.4"): "/proc/1/ns/net"}}, Nobody},
		{"its address", false, namespaces{addresses: map[netip.Addr]string{netip.MustParseAddr("10.1.0.3"): "/proc/1/ns/net"}, hidden: true}, Another},
		{"libcni's cache", true, namespaces{}, Another},
		{"hidden processes", false, namespaces{hidden: true}, NotAsked},
	} {
		a := &auditor{index: newIndex()}
		if c.alive {
			a.cached["ghost"] = cachedResult{alive: true, netns: "/run/netns/ghost"}
		}
		a.claim(other)
		a.claim(ghost, addrs("10.1.0.3")...)
		a.settle(c.in)
		for _, f := range a.found {
			expect.Same(t, c.name, f.Whose, c.want)
			expect.That(t, (f.Mend != "") == (c.want == Nobody && f.Network != ""), "%s: the mend of %+v", c.name, f)
		}
		expect.Same(t, "number of findings", len(a.found), 2)
	}
}

package cni_test

import (
	"context"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/netns"
)

// reserved are the addresses that host-local has given out in a network.
func (h *realHost) reserved(network string) []string {
	h.t.Helper()
	entries, err := os.ReadDir(h.path("ipam", network))
	if err != nil {
		h.t.Fatal(err)
	}
	var addresses []string
	for _, e := range entries {
		if addr, err := netip.ParseAddr(e.Name()); err == nil {
			addresses = append(addresses, addr.String())
		}
	}
	return addresses
}

// goneCase is a network, and what its plugins leave when a container's
// namespace is gone before they are asked to DEL.
type goneCase struct {
	name    string
	network realCase
	left    []string
	taken   []string // links of the host that the namespace takes with it
	failure string   // what Remove says to a path that is gone; then more is
	more    []string // left, so that it can be tried again
}

func goneCases() []goneCase {
	both := v4Range + "," + v6Range
	bridge := realCase{plugins: []string{bridgeConf(`"ipMasq": true, ` + hostLocal(both))}}
	nftables := realCase{plugins: []string{bridgeConf(`"ipMasq": true, "ipMasqBackend": "nftables", ` + hostLocal(both))}}
	ptp := realCase{plugins: []string{ptpConf(hostLocal(both))}}
	macvlan := realCase{plugins: []string{`{"type": "macvlan", "master": "up0", ` + hostLocal(v4Range) + `}`}, prepare: uplink}
	device := realCase{plugins: []string{`{"type": "host-device", "device": "up0", ` + hostLocal(v4Range) + `}`}, prepare: uplink}

	masquerade := []string{
		`ip6tables nat -A CNI-HASH ! -d ff00::/8 -m comment --comment "name: \"podnet\" id: \"c1\"" -j MASQUERADE`,
		`ip6tables nat -A CNI-HASH -d fd77::/64 -m comment --comment "name: \"podnet\" id: \"c1\"" -j ACCEPT`,
		`ip6tables nat -A POSTROUTING -s fd77::2/128 -m comment --comment "name: \"podnet\" id: \"c1\"" -j CNI-HASH`,
		`ip6tables nat -N CNI-HASH`,
		`iptables nat -A CNI-HASH ! -d 224.0.0.0/4 -m comment --comment "name: \"podnet\" id: \"c1\"" -j MASQUERADE`,
		`iptables nat -A CNI-HASH -d 10.77.0.0/24 -m comment --comment "name: \"podnet\" id: \"c1\"" -j ACCEPT`,
		`iptables nat -A POSTROUTING -s 10.77.0.2/32 -m comment --comment "name: \"podnet\" id: \"c1\"" -j CNI-HASH`,
		`iptables nat -N CNI-HASH`,
	}
	return []goneCase{
		{name: "bridge", network: bridge, left: masquerade},
		{name: "bridge nftables", network: nftables, left: []string{
			`nft rule inet cni_plugins_masquerade masq_checks ip saddr 10.77.0.2 ip daddr != 10.77.0.0/24 masquerade comment "HASH, net: podnet, if: eth0, id: c1"`,
			`nft rule inet cni_plugins_masquerade masq_checks ip6 saddr fd77::2 ip6 daddr != fd77::/64 masquerade comment "HASH, net: podnet, if: eth0, id: c1"`,
		}},
		{name: "ptp", network: ptp, left: masquerade},
		{name: "everything", network: everything(), left: masquerade},
		{name: "macvlan", network: macvlan},
		// Without its namespace the plugin does not ask its IPAM plugin either.
		// A device made by software dies with the namespace it is in, and its
		// peer with it; one made of metal returns to the first namespace.
		{name: "host-device", network: device,
			left:    []string{"file DIR/ipam/podnet/10.77.0.2"},
			taken:   []string{"link up0 type veth mtu 1500 up", "link up1 type veth mtu 1500 up"},
			failure: `failed to open netns "DIR/netns/c1": failed to Statfs "DIR/netns/c1": no such file or directory`,
			more:    []string{"file DIR/state/results/podnet-c1-eth0"}},
	}
}

// Remove takes what it can when the namespace is gone. What the reference
// plugins leave then is known to the line, so that this fails, and is to be
// corrected, when the library begins to sweep it by its own records (FAULTS F2).
func TestRealRemoveWhenNamespaceIsGone(t *testing.T) {
	for _, c := range goneCases() {
		for _, way := range []string{"gone", "empty"} {
			t.Run(c.name+"/"+way, func(t *testing.T) {
				h := newRealHost(t)
				if c.network.prepare != nil {
					c.network.prepare(h)
				}
				r := h.real(cni.WithConfListBytes(c.network.conf("podnet", "1.0.0", h.path("ipam"))))
				path := h.mortal("c1")
				before := h.audit()
				links := h.links() - len(c.taken)
				if _, err := r.Setup(context.Background(), "c1", path, onePort); err != nil {
					t.Fatal(err)
				}
				if err := netns.Remove(path); err != nil {
					t.Fatal(err)
				}
				h.waitForLinks(links)
				given, failure, want := path, c.failure, slices.Concat(c.left, c.more)
				if way == "empty" {
					given, failure, want = "", "", c.left
				}
				for range 2 { // what is left once is left twice
					var got string
					if err := r.Remove(context.Background(), "c1", given); err != nil {
						got = strings.ReplaceAll(whatSaid(err).Msg, h.dir, "DIR")
					}
					if got != failure {
						t.Errorf("Remove: %q, want %q", got, failure)
					}
				}
				left, gone := h.left(before)
				if got := h.withoutHashes(left); !slices.Equal(got, want) || !slices.Equal(gone, c.taken) {
					t.Errorf("left:\n%s\nwant:\n%s\ngone:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"),
						strings.Join(gone, "\n"), strings.Join(c.taken, "\n"))
				}
			})
		}
	}
}

// withoutHashes takes the hashes of chains, comments and files out of lines,
// and which of the two iptables it is.
func (h *realHost) withoutHashes(lines []string) []string {
	hash := regexp.MustCompile(`\b(CNI-)?([0-9a-f]{16}-[0-9a-f]{16}|[0-9a-f]{24,})\b`)
	tool := regexp.MustCompile(`^(ip6?tables)-(nft|legacy)\b`)
	content := regexp.MustCompile(` sha256:\w+$`)
	var out []string
	for _, l := range h.normalize(lines) {
		l = content.ReplaceAllString(tool.ReplaceAllString(l, "$1"), "")
		out = append(out, hash.ReplaceAllString(l, "${1}HASH"))
	}
	return out
}

// links counts the host's links that die with a container.
func (h *realHost) links() int {
	h.t.Helper()
	list, err := netlink.LinkList()
	if err != nil {
		h.t.Fatal(err)
	}
	n := 0
	for _, l := range list {
		if l.Type() == "veth" {
			n++
		}
	}
	return n
}

// waitForLinks waits until the kernel has taken down what a namespace held,
// which it does some time after the last reference.
func (h *realHost) waitForLinks(want int) {
	h.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for tick := time.NewTicker(5 * time.Millisecond); h.links() != want; <-tick.C {
		if time.Now().After(deadline) {
			h.t.Fatalf("%d links, want %d", h.links(), want)
		}
	}
}

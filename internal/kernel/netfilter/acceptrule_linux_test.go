package netfilter

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/iptables"
	"github.com/embedcni/cni/internal/kernel/nft"
)

// TestMessagesMakeTheRulesOfIPTables: a process makes them where the chain is missing, and
// messages where it is there. Both make the same expressions, for prefixes of any length,
// and iptables prints, finds and deletes both. It compares fewer bytes with a prefix that
// ends at a byte.
func TestMessagesMakeTheRulesOfIPTables(t *testing.T) {
	addresses := []string{"10.64.0.0/10", "10.1.0.0/16", "10.2.48.0/20", "10.3.0.9/32", "fd00:8000::/19", "fd00:1::/64", "fd00:2::10/124", "fd00:3::1/128"}
	f := testForward{Owner: Owner{Network: "podnet", ContainerID: "c1", IfName: "eth0"}}
	for _, a := range addresses {
		f.Addresses = append(f.Addresses, netip.MustParsePrefix(a))
	}
	rules := testRules{Forward: []testForward{f}}
	h := newHost(t, "nft")
	expect.NoError(t, h.fw.Add(t.Context(), rules.rules()...))
	lines, byProcess := h.filters(), h.acceptExprs()
	h.sh("iptables -F CNI-FORWARD; ip6tables -F CNI-FORWARD; iptables -A CNI-FORWARD -j CNI-ADMIN; ip6tables -A CNI-FORWARD -j CNI-ADMIN")
	h.sh("for x in iptables ip6tables; do $x -R CNI-FORWARD 1 -m comment --comment 'CNI firewall plugin admin overrides' -j CNI-ADMIN; done")
	failing := h.dir + "/failing-nft"
	expect.NoError(t, os.WriteFile(failing, []byte("#!/bin/sh\nexit 1\n"), 0o755))
	for _, family := range []string{"iptables", "ip6tables"} {
		expect.NoError(t, os.Rename(h.dir+"/bin/"+family, h.dir+"/"+family))
		expect.NoError(t, os.Symlink(failing, h.dir+"/bin/"+family))
	}
	expect.NoError(t, h.fw.Add(t.Context(), rules.rules()...))
	for _, family := range []string{"iptables", "ip6tables"} {
		expect.NoError(t, os.Rename(h.dir+"/"+family, h.dir+"/bin/"+family))
	}
	h.wantFilters(lines)
	for comment, exprs := range h.acceptExprs() {
		_, prefix, _ := strings.Cut(comment, ": ")
		p := netip.MustParsePrefix(prefix[strings.Index(prefix, " ")+1:])
		if want := byProcess[comment]; exprs != want && (p.IsSingleIP() || p.Bits()%8 != 0) {
			t.Errorf("%s: messages make\n%s\na process makes\n%s", comment, exprs, want)
		}
	}
	for _, subnet := range Subnets(f.Addresses) {
		for _, r := range expect.Value(h.fw.accepts())(t).rules(subnet) {
			for _, verb := range []string{"-C", "-D"} {
				family := "iptables"
				if subnet.Addr().Is6() {
					family = "ip6tables"
				}
				out, err := exec.Command(family, append([]string{verb, chainForward}, r.words()...)...).CombinedOutput()
				expect.That(t, err == nil, "%s %s %v: %v: %s", family, verb, r, err, out)
			}
		}
	}
}

// acceptExprs returns the expressions of the accepting rules, by comment.
func (h *host) acceptExprs() map[string]string {
	all := make(map[string]string)
	for _, family := range []string{"iptables", "ip6tables"} {
		x := iptables.Tool{Family: family}
		expect.NoError(h.t, x.Sockets.Do(h.t.Context(), func(c *nft.Conn) error {
			return c.Rules(x.Table(tableFilter), chainForward, nil, func(r nft.Rule) error {
				if comment := matchComment(r); strings.HasPrefix(comment, "embedcni ") {
					all[comment] = fmt.Sprintf("%x", r.Exprs.List())
				}
				return nil
			})
		}))
	}
	return all
}

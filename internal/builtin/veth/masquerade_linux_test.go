package veth_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/kernel/netfilter"
)

// TestMasquerade: ipMasq makes rules, CHECK reports that they are missing, and
// DEL deletes them with any input.
func TestMasquerade(t *testing.T) {
	for _, s := range both() {
		for _, backend := range []string{"", "nftables"} {
			t.Run(fmt.Sprintf("%s/%q", s.name, backend), func(t *testing.T) {
				h := newHost(t)
				masq := s
				masq.conf = `"ipMasq": true, ` + s.conf
				if backend != "" {
					masq.conf = fmt.Sprintf(`"ipMasqBackend": %q, %s`, backend, masq.conf)
				}
				first, c := masq.call(), masq.call()
				first.id = "first"
				h.namespace(first.id)
				h.namespace(c.id)
				if _, err := netfilter.Open(h.ns, netfilter.Options{}).Missing(t.Context()); err != nil {
					h.refused(c, err)
					return
				}
				h.must("ADD", first) // makes the shared objects
				clean := h.snapshot()
				add := func() {
					t.Helper()
					c.prev = h.must("ADD", c)
					if made, _ := audit.Diff(clean, h.snapshot()); len(rulesIn(made)) == 0 {
						t.Errorf("no rules among\n%s", strings.Join(made, "\n"))
					}
					h.must("CHECK", c)
				}
				restored := func(how string) {
					t.Helper()
					h.must("DEL", c)
					left, gone := audit.Diff(clean, h.snapshot())
					if left, gone := rulesIn(left), rulesIn(gone); len(left)+len(gone) > 0 {
						t.Errorf("%s: left behind:\n%s\ngone:\n%s", how, strings.Join(left, "\n"), strings.Join(gone, "\n"))
					}
				}
				add()
				restored("with everything")
				add()
				c.prev = nil
				restored("without a result")
				add()
				h.netNS = new(string)
				restored("without a namespace")
				h.netNS = nil
				add()
				h.in(c.id, "ip link del eth0")
				restored("without an interface")
				add()
				h.sh("nft flush ruleset; iptables-nft -t nat -F; iptables-legacy -t nat -F; ip6tables-nft -t nat -F; ip6tables-legacy -t nat -F")
				if out, err := h.run(t.Context(), "CHECK", c); err == nil || !strings.HasPrefix(err.Error(), `"ipMasq": `) {
					t.Errorf("CHECK without rules: %s, %v", out, err)
				}
				h.must("DEL", c)
			})
		}
	}
}

// refused checks that ADD reports a missing backend and leaves nothing behind.
func (h *host) refused(c call, want error) {
	h.t.Helper()
	clean := h.snapshot()
	h.mustFail("ADD", c, `"ipMasq": `+want.Error())
	h.wantClean(clean)
}

// rulesIn returns the lines of packet filters.
func rulesIn(lines audit.Lines) audit.Lines {
	return lines.Without(func(l string) bool {
		what, _, _ := strings.Cut(l, " ")
		return what != "nft" && !strings.HasPrefix(what, "iptables") && !strings.HasPrefix(what, "ip6tables")
	})
}

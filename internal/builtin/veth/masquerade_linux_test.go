package veth_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
)

// TestMasquerade: ipMasq makes rules, CHECK reports that they are missing, and
// DEL deletes them with any input.
func TestMasquerade(t *testing.T) {
	for _, s := range both() {
		for _, backend := range []fwrules.Backend{fwrules.Native, fwrules.IPTables, fwrules.NFTables} {
			t.Run(fmt.Sprintf("%s/%q", s.name, backend), func(t *testing.T) {
				h := newHost(t)
				masq := s
				masq.conf = `"ipMasq": true, ` + s.conf
				if backend != fwrules.Native {
					masq.conf = fmt.Sprintf(`"ipMasqBackend": %q, %s`, backend, masq.conf)
				}
				first, c := masq.call(), masq.call()
				first.id = "first"
				h.namespace(first.id)
				h.namespace(c.id)
				if err := netfilter.Open(h.ns, netfilter.Options{}).Check(t.Context(), backend, fwrules.Rules{}); err != nil {
					h.refused(c, err)
					return
				}
				h.must(ours, "ADD", first) // makes the shared objects
				clean := h.snapshot()
				add := func() {
					t.Helper()
					c.prev = h.must(ours, "ADD", c)
					if made, _ := audit.Diff(clean, h.snapshot()); len(rulesIn(made)) == 0 {
						t.Errorf("no rules among\n%s", strings.Join(made, "\n"))
					}
					h.must(ours, "CHECK", c)
				}
				restored := func(how string) {
					t.Helper()
					h.must(ours, "DEL", c)
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
				if out, err := ours(h, t.Context(), "CHECK", c); err == nil || !strings.HasPrefix(err.Error(), `"ipMasq": `) {
					t.Errorf("CHECK without rules: %s, %v", out, err)
				}
				h.must(ours, "DEL", c)
			})
		}
	}
}

// refused checks that ADD reports a missing backend and leaves nothing behind.
func (h *host) refused(c call, want error) {
	h.t.Helper()
	clean := h.snapshot()
	h.mustFail(ours, "ADD", c, `"ipMasq": `+want.Error())
	h.wantClean(clean)
}

// rulesIn returns the lines of packet filters.
func rulesIn(lines audit.Lines) audit.Lines {
	return lines.Without(func(l string) bool {
		what, _, _ := strings.Cut(l, " ")
		return what != "nft" && !strings.HasPrefix(what, "iptables") && !strings.HasPrefix(what, "ip6tables")
	})
}

// TestMasqueradeSideBySide: with a named backend, theirs checks and deletes
// rules of ours, and the other way round.
func TestMasqueradeSideBySide(t *testing.T) {
	for _, s := range both() {
		for _, backend := range []fwrules.Backend{fwrules.IPTables, fwrules.NFTables} {
			t.Run(fmt.Sprintf("%s/%s", s.name, backend), func(t *testing.T) {
				us, them, s := newHost(t), newHost(t), s
				s.conf = fmt.Sprintf(`"ipMasq": true, "ipMasqBackend": %q, %s`, backend, s.conf)
				c := s.call()
				for _, h := range []*host{us, them} {
					h.namespace(c.id)
					h.in(c.id, "echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad")
				}
				if err := netfilter.Open(us.ns, netfilter.Options{}).Check(t.Context(), backend, fwrules.Rules{}); err != nil {
					us.refused(c, err)
					return
				}
				cleanUs, cleanThem := us.snapshot(), them.snapshot()
				added, want := us.must(ours, "ADD", c), them.must(theirs, "ADD", c)
				if got, want := us.kernel(c.id), them.kernel(c.id); got != want && backend == fwrules.IPTables {
					t.Errorf("kernel:\n%s", diff(got, want))
				}
				c.prev = added
				us.must(theirs, "CHECK", c)
				us.must(theirs, "DEL", c)
				us.wantClean(cleanUs)
				c.prev = want
				them.must(ours, "CHECK", c)
				them.must(ours, "DEL", c)
				them.wantClean(cleanThem)
			})
		}
	}
}

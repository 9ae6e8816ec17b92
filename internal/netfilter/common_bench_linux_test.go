package netfilter

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/netfilter/fwrules"
)

// BenchmarkHasCommon is an ADD's cost of verifying that all shared rules exist,
// beside the rules of other containers.
func BenchmarkHasCommon(b *testing.B) {
	for _, variant := range []string{"nft", "legacy"} {
		for _, containers := range []int{0, 1000} {
			b.Run(fmt.Sprintf("%s/%d", variant, containers), func(b *testing.B) {
				h := newHost(b, variant)
				all := []fwrules.Rules{sharings()["portmap"].rules, sharings()["firewall isolated"].rules}
				for _, r := range all {
					if _, err := h.fw.MakeCommon(b.Context(), r); err != nil {
						b.Fatal(err)
					}
				}
				h.others(variant, containers)
				ctx := b.Context()
				fw := Open(h.ns, Options{})
				b.ResetTimer()
				for range b.N {
					for _, r := range all {
						if has, err := fw.HasCommon(ctx, r); !has || err != nil {
							b.Fatal(has, err)
						}
					}
				}
			})
		}
	}
}

// others makes the rules of other containers: one port and one address each.
func (h *host) others(variant string, n int) {
	h.t.Helper()
	const most = 50 // more make the message too long for the tool's socket
	for from := 0; from < n; from += most {
		var nat, filter strings.Builder
		for i := from; i < min(from+most, n); i++ {
			fmt.Fprintf(&nat, "-N CNI-DN-%d\n-A CNI-DN-%d -p tcp --dport %d -j DNAT --to-destination 10.1.0.9:80\n", i, i, i+1)
			fmt.Fprintf(&nat, "-A CNI-HOSTPORT-DNAT -p tcp -m multiport --dports %d -j CNI-DN-%d\n", i+1, i)
			fmt.Fprintf(&nat, "-A POSTROUTING -s 10.1.%d.%d/32 -j ACCEPT\n", i/250, i%250)
			fmt.Fprintf(&filter, "-A CNI-FORWARD -s 10.1.%d.%d/32 -j ACCEPT\n", i/250, i%250)
		}
		cmd := exec.Command("iptables-"+variant+"-restore", "--noflush")
		cmd.Stdin = strings.NewReader("*nat\n" + nat.String() + "COMMIT\n*filter\n" + filter.String() + "COMMIT\n")
		if out, err := cmd.CombinedOutput(); err != nil {
			h.t.Fatalf("%v: %s", err, out)
		}
	}
}

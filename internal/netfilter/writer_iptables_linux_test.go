package netfilter

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
)

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

// eachVariant runs a test on a host with each variant of iptables.
func eachVariant(t *testing.T, test func(t *testing.T, h *host, fw *Firewalls)) {
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) {
			h := newHost(t, variant)
			test(t, h, Open(h.ns, Options{}))
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantLines compares lines as a whole.
func wantLines(t *testing.T, what string, got, want audit.Lines) {
	t.Helper()
	more, less := audit.Diff(want, got)
	if len(more)+len(less) > 0 {
		t.Errorf("%s: too much:\n%s\nmissing:\n%s", what, strings.Join(more, "\n"), strings.Join(less, "\n"))
	}
}

func TestIPTablesAddTwiceIsAddOnce(t *testing.T) {
	eachVariant(t, func(t *testing.T, h *host, fw *Firewalls) {
		must(t, fw.Add(t.Context(), fwrules.IPTables, everything("c0", 3)))
		shared := h.filters()
		must(t, fw.Add(t.Context(), fwrules.IPTables, everything("c1", 4)))
		once := h.filters()
		must(t, fw.Add(t.Context(), fwrules.IPTables, everything("c1", 4)))
		wantLines(t, "after the second ADD", h.filters(), once)
		if compact := slices.Compact(slices.Clone(once)); len(compact) != len(once) {
			t.Errorf("something is there twice:\n%s", strings.Join(once, "\n"))
		}
		must(t, fw.Check(t.Context(), fwrules.IPTables, everything("c1", 4)))
		for range 2 {
			must(t, fw.Remove(t.Context(), fwrules.IPTables, everything("c1", 4)))
			wantLines(t, "after DEL", h.filters(), shared)
		}
		must(t, fw.Check(t.Context(), fwrules.IPTables, everything("c0", 3)))
		must(t, fw.Remove(t.Context(), fwrules.IPTables, everything("c0", 3)))
		wantLines(t, "after the last DEL", h.filters().Without(audit.Shared), nil)
	})
}

package interchange

import (
	"slices"
	"strings"
	"testing"
)

// TestMatrixIsComplete: the matrix has every type with every family, and with
// every promised backend.
func TestMatrixIsComplete(t *testing.T) {
	// Plugins without addresses of their own have no family.
	one := []string{"loopback"}
	backends := map[string][]string{
		"bridge": {"iptables", "nftables"}, "ptp": {"iptables", "nftables"}, "portmap": {"iptables", "nftables"},
	}
	have := map[string]bool{}
	for _, c := range cases() {
		for _, typ := range c.network.types(t) {
			have[strings.Join([]string{typ, c.family, c.backend}, " ")] = true
			have[strings.Join([]string{typ, c.family, ""}, " ")] = true
			if c.legacy && c.backend != "nftables" {
				have[typ+" legacy"] = true
			}
		}
	}
	var missing []string
	want := func(words ...string) {
		if key := strings.Join(words, " "); !have[key] {
			missing = append(missing, key)
		}
	}
	for _, typ := range promised() {
		for _, family := range families() {
			if slices.Contains(one, typ) && family != "dual" {
				continue
			}
			want(typ, family, "")
			for _, backend := range backends[typ] {
				want(typ, family, backend)
			}
		}
	}
	for _, typ := range []string{"bridge", "ptp", "portmap", "firewall"} {
		want(typ, "legacy")
	}
	if missing != nil {
		t.Errorf("the matrix lacks:\n%s", strings.Join(missing, "\n"))
	}
}

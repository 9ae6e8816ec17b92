package netfilter

import (
	"strings"
	"testing"
)

// Who may not read the list of tables is told the same by the kernel itself.
func TestFault_F61_TheKernelKnowsTheChainsOfLegacyTables(t *testing.T) {
	h := newHost(t, "legacy")
	for _, family := range []string{"iptables", "ip6tables"} {
		x := xtables{fw: h.fw, family: family, legacy: true}
		wanted := []chainID{{tableNAT, masqC1}, {tableFilter, chainForward}}
		saved, err := x.saveTables(t.Context(), wanted)
		if err != nil || saved != "" {
			t.Errorf("%s, without tables: %q, %v", family, saved, err)
		}
		h.sh(family + "-legacy -t nat -N " + masqC1[:len(masqC1)-1] + "; " + family + "-legacy -t filter -N ANOTHERS")
		saved, err = x.saveTables(t.Context(), wanted)
		if err != nil || saved != "" {
			t.Errorf("%s, with others' chains: %q, %v", family, saved, err)
		}
		h.sh(family + "-legacy -t nat -N " + masqC1 + "; " + family + "-legacy -t nat -A POSTROUTING -j " + masqC1)
		saved, err = x.saveTables(t.Context(), wanted)
		if err != nil || !strings.Contains(saved, "-A POSTROUTING -j "+masqC1+"\n") || strings.Contains(saved, "*filter") {
			t.Errorf("%s: %q, %v", family, saved, err)
		}
	}
}

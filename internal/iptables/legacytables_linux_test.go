package iptables

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/sandbox"
)

func TestMain(m *testing.M) { os.Exit(sandbox.Main(m)) }

// TestFault_F61_TheKernelKnowsTheChainsOfLegacyTables, even for users who may
// not read the list of tables.
func TestFault_F61_TheKernelKnowsTheChainsOfLegacyTables(t *testing.T) {
	nettest.Enter(t, nettest.New(t))
	const chain = "CNI-6f8bb2e8c1a5"
	for _, family := range []string{"iptables", "ip6tables"} {
		x := Tool{Family: family, Legacy: true}
		wanted := []ChainID{{Table: "nat", Chain: chain}, {Table: "filter", Chain: "CNI-FORWARD"}}
		sh := func(args string) {
			t.Helper()
			if out, err := exec.Command(family+"-legacy", strings.Fields(args)...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		saved, err := x.saveTables(t.Context(), wanted)
		if err != nil || saved != "" {
			t.Errorf("%s, without tables: %q, %v", family, saved, err)
		}
		sh("-t nat -N " + chain[:len(chain)-1])
		sh("-t filter -N ANOTHERS")
		saved, err = x.saveTables(t.Context(), wanted)
		if err != nil || saved != "" {
			t.Errorf("%s, with others' chains: %q, %v", family, saved, err)
		}
		path := os.Getenv("PATH")
		t.Setenv("PATH", t.TempDir())
		if saved, err = x.saveLegacy(t.Context(), wanted); err != nil || saved != "" {
			t.Errorf("%s, which is not installed, with others' chains: %q, %v", family, saved, err)
		}
		t.Setenv("PATH", path)
		sh("-t nat -N " + chain)
		sh("-t nat -A POSTROUTING -j " + chain)
		saved, err = x.saveTables(t.Context(), wanted)
		if err != nil || !strings.Contains(saved, "-A POSTROUTING -j "+chain+"\n") || strings.Contains(saved, "*filter") {
			t.Errorf("%s: %q, %v", family, saved, err)
		}
	}
}

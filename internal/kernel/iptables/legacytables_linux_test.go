package iptables

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
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
		has := func(id ChainID) bool {
			t.Helper()
			entries, err := x.kernelEntries(id.Table)
			if err != nil {
				t.Error(err)
			}
			return bytes.Contains(entries, append([]byte(id.Chain), 0))
		}
		for _, id := range wanted {
			expect.Same(t, family+", without tables", has(id), false)
		}
		sh("-t nat -N " + chain[:len(chain)-1])
		sh("-t filter -N ANOTHERS")
		for _, id := range wanted {
			expect.Same(t, family+", with others' chains", has(id), false)
		}
		path := os.Getenv("PATH")
		t.Setenv("PATH", t.TempDir())
		if sets, hidden, err := x.Read(t.Context(), wanted, nil); err != nil || len(sets)+len(hidden) > 0 {
			t.Errorf("%s, which is not installed, with others' chains: %v, %v, %v", family, sets, hidden, err)
		}
		t.Setenv("PATH", path)
		sh("-t nat -N " + chain)
		sh("-t nat -A POSTROUTING -j " + chain)
		expect.Same(t, family, []bool{has(wanted[0]), has(wanted[1])}, []bool{true, false})
		sets, hidden, err := x.Read(t.Context(), wanted, nil)
		if err != nil || len(hidden) > 0 || len(sets) != 1 || sets[0].Table != "nat" || len(sets[0].Rules) != 1 || sets[0].Rules[0].Words.Target() != chain {
			t.Errorf("%s: %+v, %v, %v", family, sets, hidden, err)
		}
	}
}

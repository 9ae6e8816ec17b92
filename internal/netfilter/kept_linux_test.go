package netfilter

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/batch"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
)

// countSaves returns how often a listing of iptables was started since the last call.
func (h *host) countSaves(variant string) func() int {
	h.t.Helper()
	log := filepath.Join(h.dir, "saves")
	for _, family := range []string{"iptables", "ip6tables"} {
		name := family + "-" + variant + "-save"
		tool, err := iptables.LookPath(name)
		expect.NoError(h.t, err)
		script := fmt.Sprintf("#!/bin/sh\necho >>%s\nexec %s \"$@\"\n", log, tool)
		expect.NoError(h.t, os.WriteFile(filepath.Join(h.dir, "bin", name), []byte(script), 0o755))
	}
	return func() int {
		h.t.Helper()
		data, err := os.ReadFile(log)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			h.t.Fatal(err)
		}
		expect.NoError(h.t, os.WriteFile(log, nil, 0o644))
		return strings.Count(string(data), "\n")
	}
}

// TestKeptRulesAreReadAgainOnceTheyChange, and not before: by a look, and by the
// restoration after it. Legacy rules are read each time.
func TestKeptRulesAreReadAgainOnceTheyChange(t *testing.T) {
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) {
			h := newHost(t, variant)
			var all []fwrules.Rules
			for i := range 4 {
				all = append(all, everything(fmt.Sprint("c", i), 4+i))
				must(t, h.fw.Add(t.Context(), fwrules.IPTables, all[i]))
			}
			saves, kept := h.countSaves(variant), &Kept{}
			const families = 2
			expected := func(what string, unlessLegacy int) {
				t.Helper()
				if variant == "legacy" {
					unlessLegacy = families
				}
				if got := saves(); got != unlessLegacy {
					t.Errorf("%s: %d listings, want %d", what, got, unlessLegacy)
				}
			}
			look := func() (lacking int) {
				t.Helper()
				s := Read(Open(h.ns, Options{Kept: kept}))
				for _, r := range all {
					missing, err := s.Missing(t.Context(), fwrules.IPTables, r)
					must(t, err)
					lacking += len(missing)
				}
				return lacking
			}
			restore := func() {
				t.Helper()
				var batches []*batch.Batch
				for _, r := range all {
					batches = append(batches, &batch.Batch{})
					must(t, Open(h.ns, Options{Kept: kept, Batch: batches[len(batches)-1]}).Restore(t.Context(), fwrules.IPTables, r))
				}
				must(t, errors.Join(batch.FlushTogether(t.Context(), batches)...))
			}
			whole := func(what string) {
				t.Helper()
				if n := look(); n > 0 {
					t.Errorf("%s: %d parts are missing", what, n)
				}
			}
			before := h.filters()
			saves()
			whole("at first")
			expected("the first look", families)
			whole("again")
			expected("the second look", 0)
			restore()
			expected("nothing has changed", 0)
			h.sh("nft add table ip other; nft delete table ip other")
			whole("after another's change")
			expected("another's change", families)

			for _, meanwhile := range []string{"", "iptables -t nat -N CNI-HOSTPORT-DNAT; iptables -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT"} {
				h.sh("for x in iptables ip6tables; do for t in nat filter; do $x -t $t -F; $x -t $t -X; done; done")
				if look() == 0 {
					t.Error("nothing is missing after a flush")
				}
				expected("a flush", families)
				listings := 1 // of the second family, after the first was changed
				if meanwhile != "" {
					h.sh(meanwhile)
					listings = families
				}
				restore()
				expected("restored after a look, "+meanwhile, listings)
				wantLines(t, "restored, "+meanwhile, h.filters(), before)
				saves()
				whole("restored")
				expected("the look after that", families)
			}
		})
	}
}

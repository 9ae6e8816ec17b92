package netfilter

import (
	"testing"

	"github.com/embedcni/cni/internal/nft"
)

// interrupted is an nf_tables whose lists others interrupt a few times, as they
// change rules meanwhile.
type interrupted struct {
	*fakeNFT
	times int
}

func (i *interrupted) Rules(t nft.Table, chain string, containing [][]byte, each func(nft.Rule) error) error {
	if i.times--; i.times >= 0 {
		return nft.ErrChanged
	}
	return i.fakeNFT.Rules(t, chain, containing, each)
}

// Rules that are there are so while other containers' rules change.
func TestIntactWhileOthersChangeRules(t *testing.T) {
	fake := &fakeNFT{tables: nftTables()}
	plan, err := Find(t.Context(), fakeFirewalls(fake), c1())
	if err != nil || len(plan.found) == 0 {
		t.Fatalf("found %q, %v", plan, err)
	}
	for _, f := range plan.found {
		w := f.(nftFound)
		w.form.fake = &interrupted{fake, 2}
		if intact, err := w.Intact(t.Context()); !intact || err != nil {
			t.Errorf("table %v is intact: %v, %v", w.table, intact, err)
		}
	}
}

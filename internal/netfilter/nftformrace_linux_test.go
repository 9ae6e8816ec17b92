package netfilter

import (
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
)

// TestNFTablesSparesNeighbours: the container's rules for another network have
// the same comment. They stay if the addresses to remove are known.
func TestNFTablesSparesNeighbours(t *testing.T) {
	h := newHost(t, "nft")
	other := wanted("c1", "10.2.0.2/24", "fd00:2::2/64", 2000)
	other.Masquerade[0].Network, other.HostPorts[0].Network = "podnet2", "podnet2"
	second := wanted("c1", "10.1.0.20/24", "fd00:1::20/64", 3000)
	second.Masquerade[0].IfName, second.HostPorts[0].IfName = "eth1", "eth1"
	for _, r := range []fwrules.Rules{other, second, wanted("c11", "10.1.0.3/24", "fd00:1::3/64", 1000), wanted("c", "10.1.0.4/24", "fd00:1::4/64", 4000)} {
		h.mustWrite(fwrules.NFTables, r)
	}
	before := h.filters()
	r := wanted("c1", "10.1.0.2/24", "fd00:1::2/64", 8080)
	h.mustWrite(fwrules.NFTables, r)
	h.mustWrite(fwrules.NFTables, r) // and its second copies
	h.mustRemove(fwrules.NFTables, r)
	h.wantFilters(before)
	// Without addresses it is all of the container's ports, as with the plugin,
	// and the masquerading of this attachment only.
	h.mustWrite(fwrules.NFTables, r)
	h.mustRemove(fwrules.NFTables, fwrules.Rules{Masquerade: []fwrules.Masquerade{{Owner: r.Masquerade[0].Owner}}, HostPorts: []fwrules.HostPorts{{Owner: r.HostPorts[0].Owner}}})
	gone := strings.Join(minus(before, h.filters()), "\n")
	if strings.Contains(gone, "cni_plugins_masquerade") || strings.Contains(gone, `"c11"`) || strings.Contains(gone, `"c"`) || strings.Count(gone, `"c1"`) != 16 {
		t.Errorf("gone:\n%s", gone)
	}
}

// TestNFTablesRace: 64 concurrent attachments in a namespace without the
// tables.
func TestNFTablesRace(t *testing.T) {
	h := newHost(t, "nft")
	fw := Open(h.ns, Options{})
	ctx := t.Context()
	if err := atOnce(0, racers, func(i int) error { return fw.Add(ctx, fwrules.NFTables, raceRules(i)) }); err != nil {
		t.Fatal(err)
	}
	err := atOnce(0, racers, func(i int) error {
		if i%2 == 0 {
			return fw.Remove(ctx, fwrules.NFTables, raceRules(i))
		}
		return fw.Check(ctx, fwrules.NFTables, raceRules(i))
	})
	if err != nil {
		t.Error(err)
	}
	for i := range racers {
		if err := fw.Check(ctx, fwrules.NFTables, raceRules(i)); (err == nil) != (i%2 == 1) {
			t.Errorf("attachment %d: %v", i, err)
		}
	}
	if n := len(h.filters().Without(audit.Shared)); n != 4*racers/2 {
		t.Errorf("%d rules are there, want %d", n, 4*racers/2)
	}
}

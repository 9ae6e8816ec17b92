package reference

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/nft"
)

// comment is that of the attachment c1.
const comment = "fa98a27bbcc17b2e-f4d01f2ef4b92245, net: podnet, if: eth0, id: c1"

func findTables(t *testing.T, fake ruleTable, target fwrules.Target) (plan, error) {
	t.Helper()
	return Form{fake: fake}.findNFTables(t.Context(), target)
}

// fakeTable is the content of a table.
type fakeTable struct {
	chains []string
	rules  []nft.Rule
}

// fakeRule makes a rule that loads the addresses and jumps.
func fakeRule(chain string, handle uint64, comment, jump string, addrs []netip.Addr) nft.Rule {
	e := nft.Exprs(nil)
	for _, a := range addrs {
		e = e.Load(nft.Reg(0), a.AsSlice())
	}
	if jump != "" {
		e = e.Jump(jump)
	}
	return nft.Rule{Chain: chain, Handle: handle, Comment: comment, Exprs: e}
}

// fakeTables is an nf_tables that holds its tables itself.
type fakeTables struct {
	tables   map[nft.Table]fakeTable
	changes  int // generation
	listErr  error
	onRemove func(*fakeTables) // called before a removal, e.g. to interfere
	busy     string            // a chain that is still referenced
}

func (f *fakeTables) Generation() (uint32, error) { return uint32(f.changes), f.listErr }

func (f *fakeTables) Exist(family uint8, chains ...nft.Chain) (uint32, []bool, error) {
	exist := make([]bool, len(chains))
	for i, c := range chains {
		exist[i] = slices.Contains(f.tables[nft.Table{Family: family, Name: c.Table}].chains, c.Name)
	}
	return uint32(f.changes), exist, f.listErr
}

func (f *fakeTables) Rules(t nft.Table, chain string, _ [][]byte, each func(nft.Rule) error) error {
	for _, r := range f.tables[t].rules {
		if chain == "" || r.Chain == chain {
			if err := each(r); err != nil {
				return err
			}
		}
	}
	return f.listErr
}

func (f *fakeTables) Delete(generation uint32, objects []nft.Object) error {
	if f.onRemove != nil {
		f.onRemove(f)
	}
	if generation != uint32(f.changes) {
		return nft.ErrChanged
	}
	for _, o := range objects {
		if o.Handle == 0 && o.Chain == f.busy {
			return unix.EBUSY
		}
	}
	for _, o := range objects {
		c := f.tables[o.Table]
		c.rules = slices.DeleteFunc(slices.Clone(c.rules), func(r nft.Rule) bool {
			return r.Chain == o.Chain && (o.Handle == 0 || r.Handle == o.Handle)
		})
		if o.Handle == 0 {
			c.chains = slices.DeleteFunc(slices.Clone(c.chains), func(name string) bool { return name == o.Chain })
		}
		f.tables[o.Table] = c
	}
	f.changes++
	return nil
}

func someTables() map[nft.Table]fakeTable {
	v4 := addrs("10.1.0.2")
	return map[nft.Table]fakeTable{
		{Family: nft.FamilyInet, Name: "cni_plugins_masquerade"}: {rules: []nft.Rule{
			fakeRule("masq_checks", 1, comment, "", v4), fakeRule("masq_checks", 2, comment+"0", "", v4), fakeRule("masq_checks", 3, "see "+comment, "", v4),
			fakeRule("masq_checks", 4, comment, "", v4), fakeRule("other", 5, comment, "", v4), fakeRule("masq_checks", 6, "", "", v4),
		}},
		{Family: nft.FamilyIPv4, Name: "cni_hostport"}: {rules: []nft.Rule{
			fakeRule("hostports", 1, "c1", "", v4), fakeRule("hostports", 2, "c1", "", addrs("10.2.0.2")), fakeRule("hostip_hostports", 3, "c1", "", v4),
			fakeRule("masquerading", 4, "c1", "", v4), fakeRule("hostports", 5, "c", "", v4), fakeRule("hostports", 6, "c10", "", v4), fakeRule("hostports", 7, "", "", v4), fakeRule("other", 8, "c1", "", v4),
		}},
		{Family: nft.FamilyIPv6, Name: "cni_hostport"}: {rules: []nft.Rule{fakeRule("hostports", 1, "c1", "", nil)}},
		{Family: nft.FamilyBridge, Name: "nat"}: {chains: []string{"cni-br-iface-c1-eth0", "cni-br-iface-c1-eth0-mac", "cni-br-iface-c1-eth00"}, rules: []nft.Rule{
			fakeRule("PREROUTING", 1, "macspoofchk-c1-eth0", "cni-br-iface-c1-eth0", nil), fakeRule("PREROUTING", 2, "", "cni-br-iface-c1-eth0", nil),
			fakeRule("PREROUTING", 3, "macspoofchk-c1-eth00", "cni-br-iface-c1-eth00", nil),
		}},
		{Family: nft.FamilyInet, Name: "other"}: {rules: []nft.Rule{fakeRule("masq_checks", 1, comment, "", v4)}},
	}
}

func TestFindInNFTables(t *testing.T) {
	target := c1()
	target.Siblings = addrs("10.2.0.2")
	fake := &fakeTables{tables: someTables()}
	plan, err := findTables(t, fake, target)
	if err != nil {
		t.Fatal(err)
	}
	want := `nft delete rule inet cni_plugins_masquerade masq_checks handle 1 # "` + comment + `"
nft delete rule inet cni_plugins_masquerade masq_checks handle 4 # "` + comment + `"
nft delete rule ip cni_hostport hostports handle 1 # "c1"
nft delete rule ip cni_hostport hostip_hostports handle 3 # "c1"
nft delete rule ip cni_hostport masquerading handle 4 # "c1"
nft delete rule ip6 cni_hostport hostports handle 1 # "c1"
nft delete rule bridge nat PREROUTING handle 1 # "macspoofchk-c1-eth0"
nft delete rule bridge nat PREROUTING handle 2 # ""
nft delete chain bridge nat cni-br-iface-c1-eth0
nft delete chain bridge nat cni-br-iface-c1-eth0-mac
`
	if got := plan.text(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if err := plan.Apply(t.Context()); err != nil {
		t.Error(err)
	}
	if fake.changes != 4 {
		t.Errorf("it took %d transactions for 4 tables", fake.changes)
	}
	if again, err := findTables(t, fake, target); err != nil || len(again) > 0 {
		t.Errorf("afterwards: %v\n%s", err, again)
	}
}

func TestApplyToNFTables(t *testing.T) {
	masq, bridge := nft.Table{Family: nft.FamilyInet, Name: "cni_plugins_masquerade"}, nft.Table{Family: nft.FamilyBridge, Name: "nat"}
	tests := map[string]struct {
		interfere func(*fakeTables)
		busy      string
		wantErr   string
		wantLeft  int // objects that a second listing finds
	}{
		"nobody interferes":   {interfere: func(*fakeTables) {}},
		"everything is gone":  {interfere: func(f *fakeTables) { f.tables = nil; f.changes++ }},
		"others change rules": {interfere: func(f *fakeTables) { f.changes++ }},
		"a table is made again, with another's rules": {interfere: func(f *fakeTables) {
			f.changes++
			f.tables[masq] = fakeTable{rules: []nft.Rule{fakeRule("masq_checks", 1, "another's", "", nil), fakeRule("other", 4, comment, "", nil)}}
		}},
		"a chain is referenced": {interfere: func(*fakeTables) {}, busy: "cni-br-iface-c1-eth0-mac",
			wantErr: "nftables: delete chain bridge nat cni-br-iface-c1-eth0-mac: device or resource busy", wantLeft: 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			fake := &fakeTables{tables: someTables(), busy: tt.busy}
			plan, err := findTables(t, fake, c1())
			if err != nil {
				t.Fatal(err)
			}
			fake.onRemove = func(f *fakeTables) {
				f.onRemove = nil
				tt.interfere(f)
			}
			got := ""
			if err := plan.Apply(t.Context()); err != nil {
				got = err.Error()
			}
			if got != tt.wantErr {
				t.Errorf("error %q, want %q", got, tt.wantErr)
			}
			again, err := findTables(t, fake, c1())
			if n := strings.Count(again.text(), "\n"); err != nil || n != tt.wantLeft {
				t.Errorf("left, %v:\n%s", err, again)
			}
			if name == "a table is made again, with another's rules" && len(fake.tables[masq].rules) != 2 {
				t.Errorf("of the table that was made again there is %v", fake.tables[masq])
			}
			if len(fake.tables) > 0 && len(fake.tables[bridge].rules) != 1 {
				t.Errorf("of the bridge's table there is %v", fake.tables[bridge])
			}
		})
	}
}

// TestApplyGivesUpOnChanges: constant changes do not keep Apply busy for ever.
func TestApplyGivesUpOnChanges(t *testing.T) {
	fake := &fakeTables{tables: someTables()}
	plan, err := findTables(t, fake, c1())
	if err != nil {
		t.Fatal(err)
	}
	fake.onRemove = func(f *fakeTables) { f.changes++ }
	if err := plan.Apply(t.Context()); !errors.Is(err, nft.ErrChanged) {
		t.Error(err)
	}
}

// TestFindNamesTheTables that cannot be read.
func TestFindNamesTheTables(t *testing.T) {
	broken := errors.New("broken")
	_, err := findTables(t, &fakeTables{listErr: broken}, c1())
	want := "nftables: list the rules of table inet cni_plugins_masquerade: broken\n" +
		"nftables: list the rules of table ip cni_hostport: broken\n" +
		"nftables: list the rules of table ip6 cni_hostport: broken\n" +
		"nftables: list the rules of table bridge nat: broken"
	if err == nil || err.Error() != want || !errors.Is(err, broken) {
		t.Errorf("got %v, want %s", err, want)
	}
}

package iptform

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
)

// TestRestorers: one for each family and variant, by the notes of the attachments. Its
// processes hold the locks of all containers whose rules they add, each once.
func TestRestorers(t *testing.T) {
	dir := t.TempDir()
	lockOf := func(name string) *os.File {
		f := expect.Value(os.Create(filepath.Join(dir, name)))(t)
		t.Cleanup(func() { expect.NoError(t, f.Close()) })
		return f
	}
	one := func(id string, held *os.File, legacy bool, addr string) Restoring {
		made := expect.Value(json.Marshal(variant{legacy}))(t)
		return Restoring{
			Form: Form{Held: held, Fact: func(string) json.RawMessage { return made }},
			Rules: fwrules.Rules{Masquerade: []fwrules.Masquerade{{
				Owner: fwrules.Owner{Network: "net", ContainerID: id, IfName: "eth0"}, Addresses: []netip.Prefix{netip.MustParsePrefix(addr)},
			}}},
		}
	}
	first, second := lockOf("first"), lockOf("second")
	tools, err := restorersOf(t.Context(), []Restoring{
		one("c1", first, false, "10.1.0.1/24"), one("c1", first, false, "10.1.0.11/24"), one("c2", second, false, "10.1.0.2/24"),
		one("c3", second, true, "10.1.0.3/24"), one("c4", nil, false, "fd00::4/64"),
	})
	expect.NoError(t, err)
	type restores struct {
		name   string
		wanted int
		held   []*os.File
	}
	var got []restores
	for _, r := range tools {
		got = append(got, restores{r.Name(), len(r.wanted), r.Held})
		expect.Same(t, r.Name()+" restores", r.restores, true)
	}
	expect.Same(t, "restorers", got, []restores{
		{"iptables-nft", 3, []*os.File{first, second}}, {"iptables-legacy", 1, []*os.File{second}}, {"ip6tables-nft", 1, nil},
	})
}

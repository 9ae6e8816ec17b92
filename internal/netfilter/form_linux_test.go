package netfilter

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/netfilter/fwrules"
)

// TestCheckInAnyForm finds an attachment's rules in the form of any maker, and
// no other's.
func TestCheckInAnyForm(t *testing.T) {
	h := newHost(t, "nft")
	fw := Open(h.ns, Options{})
	anyForm := Open(h.ns, Options{AnyForm: true})
	for n, b := range []fwrules.Backend{fwrules.IPTables, fwrules.NFTables, fwrules.Native} {
		c1, c2 := everything("c1", 10*n+1), everything("c2", 10*n+2)
		c1.HostPorts[0].MasqAll = true
		if b == fwrules.NFTables { // it has neither
			c1.Forward, c1.HostPorts[0].MasqAll = nil, false
		}
		if err := anyForm.Check(t.Context(), fwrules.Native, c1); err == nil {
			t.Errorf("%q: found before there are any", b)
		}
		must(t, fw.Add(t.Context(), b, c1))
		c1.HostPorts[0].MasqAll = true
		must(t, anyForm.Check(t.Context(), fwrules.Native, c1))
		if err := anyForm.Check(t.Context(), fwrules.Native, c2); err == nil {
			t.Errorf("%q: another's were taken for them", b)
		}
		if err := fw.Check(t.Context(), fwrules.Native, c1); (err == nil) != (b == fwrules.Native) {
			t.Errorf("%q: the native form alone: %v", b, err)
		}
	}
}

// notebook is the record of one attachment.
type notebook struct {
	noted map[string]json.RawMessage
}

func (n notebook) Fact(key string) json.RawMessage { return n.noted[key] }

func (n notebook) Note(key string, value any) (err error) {
	n.noted[key], err = json.Marshal(value)
	return err
}

// TestTheVariantIsNotedBeforeThereAreRules: a process killed between the two
// leaves no rules of an unknown variant.
func TestTheVariantIsNotedBeforeThereAreRules(t *testing.T) {
	eachVariant(t, func(t *testing.T, h *host, _ *Firewalls) {
		noted := map[string]json.RawMessage{}
		fw := Open(h.ns, Options{Notes: notebook{noted}})
		ended, end := context.WithCancel(t.Context())
		end()
		if err := fw.Add(ended, fwrules.IPTables, everything("c1", 1)); err == nil {
			t.Fatal("an ADD whose context has ended succeeded")
		}
		want := fmt.Sprintf(`{"legacy":%t}`, strings.HasSuffix(t.Name(), "/legacy"))
		if got := string(noted["netfilter/iptables"]); got != want {
			t.Errorf("noted %q, want %q", got, want)
		}
		must(t, fw.Add(t.Context(), fwrules.IPTables, everything("c1", 1)))
	})
}

package netfilter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/iptables"
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

// TestForwardingInAnyForm: only iptables has rules that accept packets, so on a host
// with iptables they are missing if they are not there.
func TestForwardingInAnyForm(t *testing.T) {
	h := newHost(t, "nft")
	fw, anyForm := Open(h.ns, Options{}), Open(h.ns, Options{AnyForm: true})
	r := fwrules.Rules{Forward: everything("c1", 1).Forward}
	all, err := anyForm.Missing(t.Context(), fwrules.Native, r)
	if err != nil || len(all) != 2 || all[0].Backend != fwrules.IPTables || all[0].Object != "forwarding for 10.1.0.1" {
		t.Errorf("got %s, %v", textOfMissing(all), err)
	}
	for _, m := range all {
		must(t, fw.Restore(t.Context(), m.Backend, m.Rules))
	}
	must(t, anyForm.Check(t.Context(), fwrules.Native, r))
	must(t, fw.Check(t.Context(), fwrules.IPTables, r))
}

// TestMissingInAnyFormIsThatOfTheMaker: of rules that are there in part, the rest is
// made in the same form; of rules that are all gone, in that of the reference plugins.
func TestMissingInAnyFormIsThatOfTheMaker(t *testing.T) {
	h := newHost(t, "nft")
	fw, anyForm := Open(h.ns, Options{}), Open(h.ns, Options{AnyForm: true})
	for n, b := range []fwrules.Backend{fwrules.IPTables, fwrules.NFTables, fwrules.Native} {
		whole := everything(fmt.Sprint("c", n), 10*n+1)
		whole.Forward = nil
		part := fwrules.Rules{HostPorts: whole.HostPorts}
		for i, missing := range []fwrules.Backend{fwrules.IPTables, b} {
			all, err := anyForm.Missing(t.Context(), fwrules.Native, whole)
			if err != nil || len(all) == 0 || all[0].Backend != missing {
				t.Errorf("%q, %d: got %s, %v", b, i, textOfMissing(all), err)
			}
			must(t, fw.Restore(t.Context(), b, part))
		}
		left, err := anyForm.Missing(t.Context(), fwrules.Native, whole)
		must(t, err)
		for _, m := range left {
			must(t, fw.Restore(t.Context(), m.Backend, m.Rules))
		}
		must(t, fw.Check(t.Context(), b, whole))
	}
}

// TestAFormThatCannotBeReadIsNotMissing: the rules may be there in it.
func TestAFormThatCannotBeReadIsNotMissing(t *testing.T) {
	newHost(t, "nft")
	r := everything("c1", 1)
	r.Forward = nil
	broken := errors.New("cannot be read")
	for _, tt := range []struct {
		unreadable fwrules.Backend
		err        error
		missing    bool
	}{{fwrules.IPTables, broken, false}, {fwrules.NFTables, broken, false}, {fwrules.IPTables, iptables.ErrNotFound, true}} {
		all, err := missingInAny(t.Context(), r, func(_ context.Context, b fwrules.Backend, r fwrules.Rules) (all []fwrules.Missing, err error) {
			if b == tt.unreadable {
				return nil, tt.err
			}
			for _, p := range r.Parts() {
				all = append(all, fwrules.Missing{Backend: b, Rules: p.Rules, Err: fwrules.AsMissing(errors.New("it is not there"))})
			}
			return all, nil
		})
		if tt.missing != (err == nil) || tt.missing != (len(all) > 0) || errors.Is(err, fwrules.ErrMissing) || !tt.missing && !errors.Is(err, broken) {
			t.Errorf("%q: %v: got %s, %v", string(tt.unreadable), tt.err, textOfMissing(all), err)
		}
		for _, m := range all {
			if !errors.Is(m.Err, fwrules.ErrMissing) {
				t.Errorf("%v is not an ErrMissing", m.Err)
			}
		}
	}
}

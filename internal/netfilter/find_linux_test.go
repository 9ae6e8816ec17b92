package netfilter

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/embedcni/cni/internal/netfilter/fwrules"
)

// The plugins' names for the target c1.
const (
	masqC1 = "CNI-1d96a4c7e0d1b705cc10f1f7"
	nftC1  = "fa98a27bbcc17b2e-f4d01f2ef4b92245, net: podnet, if: eth0, id: c1"
)

func c1() fwrules.Target {
	return fwrules.Target{Owner: fwrules.Owner{Network: "podnet", ContainerID: "c1", IfName: "eth0"}, Addresses: addrs("10.1.0.2", "fd00::2")}
}

func addrs(s ...string) []netip.Addr {
	var list []netip.Addr
	for _, a := range s {
		list = append(list, netip.MustParseAddr(a))
	}
	return list
}

func TestFindRefusesAnIncompleteTarget(t *testing.T) {
	for _, target := range []fwrules.Target{
		{}, {Owner: fwrules.Owner{Network: "n", ContainerID: "c"}}, {Owner: fwrules.Owner{Network: "n", IfName: "i"}}, {Owner: fwrules.Owner{ContainerID: "c", IfName: "i"}},
	} {
		plan, err := Find(t.Context(), &Firewalls{}, target)
		if !errors.Is(err, fwrules.ErrIncompleteTarget) || !plan.Empty() {
			t.Errorf("%+v: %v, plan %v", target, err, plan)
		}
	}
	target := c1()
	target.InUse = []netip.Addr{{}}
	if _, err := Find(t.Context(), &Firewalls{}, target); err == nil {
		t.Error("no error for an invalid address")
	}
}

// stub is a form whose search finds one thing, and fails.
type stub struct {
	form
	name    string
	applied *[]string
}

func (s stub) Find(context.Context, fwrules.Target) ([]fwrules.Found, error) {
	return []fwrules.Found{s}, errors.New("find " + s.name)
}

func (s stub) Lines() []string { return []string{"delete " + s.name} }

func (s stub) Apply(context.Context) error {
	*s.applied = append(*s.applied, s.name)
	return errors.New("apply " + s.name)
}

func (s stub) Intact(context.Context) (bool, error) { return true, nil }

// TestFindGoesOnAfterAnError: a packet filter that cannot be read does not hide
// the others, and one that cannot be changed does not keep the others' rules.
func TestFindGoesOnAfterAnError(t *testing.T) {
	var applied []string
	plan, err := Find(t.Context(), &Firewalls{forms: []backend{{form: stub{name: "a", applied: &applied}}, {form: stub{name: "b", applied: &applied}}}}, c1())
	if got, want := plan.String(), "delete a\ndelete b\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if want := "find a\nfind b"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if err, want := plan.Apply(t.Context()), "apply a\napply b"; err == nil || err.Error() != want || len(applied) != 2 {
		t.Errorf("got %v, want %s; applied %q", err, want, applied)
	}
}

func TestFindEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (Plan{}).Apply(ctx); err != nil {
		t.Errorf("the empty plan: %v", err)
	}
	if _, err := Find(ctx, Open(nil, Options{}), c1()); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

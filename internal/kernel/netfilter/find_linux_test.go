package netfilter

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// The plugins' names for the target c1.
const (
	masqC1 = "CNI-1d96a4c7e0d1b705cc10f1f7"
	nftC1  = "fa98a27bbcc17b2e-f4d01f2ef4b92245, net: podnet, if: eth0, id: c1"
)

func c1() Target {
	return Target{Owner: Owner{Network: "podnet", ContainerID: "c1", IfName: "eth0"}, Addresses: addrs("10.1.0.2", "fd00::2")}
}

func addrs(s ...string) []netip.Addr {
	var list []netip.Addr
	for _, a := range s {
		list = append(list, netip.MustParseAddr(a))
	}
	return list
}

func TestFindRefusesAnIncompleteTarget(t *testing.T) {
	for _, target := range []Target{
		{}, {Owner: Owner{Network: "n", ContainerID: "c"}}, {Owner: Owner{Network: "n", IfName: "i"}}, {Owner: Owner{ContainerID: "c", IfName: "i"}},
	} {
		plan, err := Find(t.Context(), &Firewalls{}, target)
		if !errors.Is(err, ErrIncompleteTarget) || !plan.Empty() {
			t.Errorf("%+v: %v, plan %v", target, err, plan)
		}
	}
	target := c1()
	target.InUse = []netip.Addr{{}}
	expect.Fails(t, "no error for an invalid address", expect.Err(Find(t.Context(), &Firewalls{}, target)))
}

func TestFindEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	expect.NoError(t, (Plan{}).Apply(ctx))
	expect.Is(t, expect.Err(Find(ctx, Open(nil, Options{}), c1())), context.Canceled)
}

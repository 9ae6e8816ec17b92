package native

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/nft"
)

// rulesOf returns rules of a container with the addresses 10.1.0.2 and fd00:1::2.
func rulesOf(id string) fwrules.Rules {
	o := fwrules.Owner{Network: "podnet", ContainerID: id, IfName: "eth0"}
	v4, v6 := netip.MustParsePrefix("10.1.0.2/24"), netip.MustParsePrefix("fd00:1::2/64")
	return fwrules.Rules{
		Masquerade: []fwrules.Masquerade{{Owner: o, Addresses: []netip.Prefix{v4, v6}}},
		HostPorts: []fwrules.HostPorts{{Owner: o, V4: v4, V6: v6, SNAT: true, Ports: []fwrules.HostPort{
			{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"},
			{HostPort: 8080, ContainerPort: 53, Protocol: "udp", HostIP: netip.MustParseAddr("127.0.0.1")},
			{HostPort: 8080, ContainerPort: 54, Protocol: "sctp", HostIP: netip.MustParseAddr("fd00:99::1")},
		}}},
	}
}

// target describes the container c1 of rulesOf.
func target() fwrules.Target {
	h := rulesOf("c1").HostPorts[0]
	return fwrules.Target{Owner: h.Owner, Addresses: []netip.Addr{h.V4.Addr(), h.V6.Addr()}, Ports: h.Ports}
}

func mustElements(t *testing.T, r fwrules.Rules) []element {
	t.Helper()
	elements, err := elementsOf(r)
	if err != nil {
		t.Fatal(err)
	}
	return elements
}

// fakeTable is a table outside the kernel.
type fakeTable struct {
	elements []element
	asked    []string         // sets that were listed as a whole
	changes  int              // generation
	onDelete func(*fakeTable) // called before a deletion, e.g. to interfere
	err      error            // of lists
}

func (f *fakeTable) Sets(nft.Table) ([]string, error) {
	var names []string
	for _, e := range f.elements {
		if !slices.Contains(names, e.Set) {
			names = append(names, e.Set)
		}
	}
	return names, f.err
}

func (f *fakeTable) Elements(_ nft.Table, keys []element, sets []string) ([]element, uint32, error) {
	f.asked = append(f.asked, sets...)
	var found []element
	for _, e := range f.elements {
		if slices.Contains(sets, e.Set) || slices.ContainsFunc(keys, func(k element) bool { return keyOf(k) == keyOf(e) }) {
			found = append(found, e)
		}
	}
	return found, uint32(f.changes), f.err
}

func (f *fakeTable) DeleteElements(_ nft.Table, generation uint32, elements []element) error {
	if f.onDelete != nil {
		f.onDelete(f)
	}
	if generation != uint32(f.changes) {
		return nft.ErrChanged
	}
	f.elements = slices.DeleteFunc(f.elements, func(e element) bool { return slices.Contains(elements, e) })
	f.changes++
	return nil
}

// TestFindListsNoSets: known elements are read by key, so that the cost does not
// grow.
func TestFindListsNoSets(t *testing.T) {
	elements := mustElements(t, rulesOf("c1"))
	fake := &fakeTable{elements: elements}
	found, err := Form{fake: fake}.Find(t.Context(), target())
	if err != nil || len(found) != 1 || len(found[0].Lines()) != len(elements) || len(fake.asked) > 0 {
		t.Errorf("%v, listed %q, found %q", err, fake.asked, found)
	}
	thorough := target()
	thorough.Thorough = true
	if _, err := (Form{fake: fake}).Find(t.Context(), thorough); err != nil || len(fake.asked) == 0 {
		t.Errorf("%v, listed %q", err, fake.asked)
	}
	fake.err = errors.New("broken")
	_, err = Form{fake: fake}.Find(t.Context(), target())
	if want := "nftables: list the sets of table inet embedcni: broken"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// TestApplyWhileOthersChange: between search and deletion another container gets
// the address. Its elements stay.
func TestApplyWhileOthersChange(t *testing.T) {
	mine, theirs := mustElements(t, rulesOf("c1")), mustElements(t, rulesOf("c2"))
	fake := &fakeTable{elements: slices.Clone(mine)}
	found, err := Form{fake: fake}.Find(t.Context(), target())
	if err != nil || len(found) != 1 {
		t.Fatal(err, found)
	}
	fake.onDelete = func(f *fakeTable) {
		if f.onDelete = nil; f.changes == 0 {
			f.elements = append(slices.Clone(theirs[:6]), mine[6:]...)
			f.changes++
		}
	}
	if err := found[0].Apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(fake.elements, theirs[:6]) {
		t.Errorf("left\n%v\nwant\n%v", fake.elements, theirs[:6])
	}
	// Endless changes are an error at some time, instead of a loop.
	fake.elements, fake.onDelete = slices.Clone(mine), func(f *fakeTable) { f.changes++ }
	if err := found[0].Apply(t.Context()); !errors.Is(err, nft.ErrChanged) {
		t.Errorf("got %v, want %v", err, nft.ErrChanged)
	}
}

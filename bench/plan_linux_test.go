package main

import (
	"fmt"
	"slices"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

func TestPlan(t *testing.T) {
	var got []string
	for _, s := range plan(fullEffort) {
		got = append(got, s.Name)
		if s.Rounds < 1 || s.AtOnce < 1 || s.Weight < 1 || len(s.Contenders) < 1 {
			t.Errorf("%s: %+v", s.Name, s)
		}
		if s.Name != natMany && // it is too slow for thousands
			!slices.ContainsFunc(s.Contenders, func(c contender) bool { return c.Kind == kindGoCNI }) {
			t.Errorf("%s: without go-cni there is nothing to compare with", s.Name)
		}
	}
	want := []string{"default", "loopback", "bridge", "nat", "default8", "default64", "crowd64",
		"default-attached", "default-attached8", "ports", "attached", "many"}
	expect.Same(t, "scenarios", got, want)
}

func TestSelected(t *testing.T) {
	all := plan(quickEffort)
	got, err := selected(all, "nat,loopback")
	if err != nil || len(got) != 2 || got[0].Name != "nat" || got[1].Name != "loopback" {
		t.Errorf("selected %v, %v", got, err)
	}
	expect.Fails(t, "no error for a scenario that is not there", expect.Err(selected(all, "nat,nonsense")))
	expect.Same(t, "nothing selected is", len(expect.Value(selected(all, ""))(t)), len(all))
}

func TestNetworksDoNotOverfillBridges(t *testing.T) {
	for i, want := range map[int]int{0: 0, 9: 0, 999: 0, 1000: 1, 2999: 2} {
		expect.Same(t, fmt.Sprint("network of container ", i), network(i), want)
	}
}

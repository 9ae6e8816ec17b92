package cni_test

import (
	"context"
	"errors"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// TestSetupFollowsAPathThatBecameAnothersWhileItWaited for another call on the
// container: Setup attaches to the namespace that the path names when its turn
// comes.
func TestSetupFollowsAPathThatBecameAnothersWhileItWaited(t *testing.T) {
	s := testhost.NewStage(t)
	arrived, letGo := make(chan struct{}), make(chan struct{})
	var seen []netns.ID
	p := testhost.Acting{On: map[string]testhost.Action{"ADD": func(_ context.Context, r *plugin.Request) error {
		seen = append(seen, r.Container.ID())
		if len(seen) > 1 {
			return nil
		}
		close(arrived)
		<-letGo
		return errors.New("not this time")
	}}}
	r := s.Runtime(cni.WithBuiltins(map[string]plugin.Plugin{"p": p}), testhost.ListOfTypes("net", "p"))
	path := s.Container("c1")
	before := idAt(t, path)

	first := testhost.Begin(testhost.SetUp(t.Context(), r, "c1", path))
	expect.Await(t, "the plugin", arrived)
	alone := openAs(t, before) // by the call and its plugin
	second := testhost.Begin(testhost.SetUp(t.Context(), r, "c1", path))
	expect.Eventually(t, "the second call to open the namespace", func() bool { return openAs(t, before) != alone })
	s.RemoveNetNS("c1")
	s.Container("c1")
	after := idAt(t, path)
	close(letGo)
	expect.Fails(t, "the first call succeeded", expect.Await(t, "the first call", first))
	expect.NoError(t, expect.Await(t, "the second call", second))
	expect.Same(t, "the plugin's namespaces", seen, []netns.ID{before, after})
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
}

func idAt(t *testing.T, path string) netns.ID {
	t.Helper()
	ns := expect.Value(netns.Open(path))(t)
	expect.NoError(t, ns.Close())
	return ns.ID()
}

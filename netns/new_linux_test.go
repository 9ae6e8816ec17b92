package netns_test

import (
	"path/filepath"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

func TestNewHasNoNameUntilItIsPinned(t *testing.T) {
	outside := currentID(t)
	h := expect.Value(netns.New())(t)
	if h.ID() == outside || currentID(t) != outside {
		t.Errorf("made %s from %s, and is now in %s", h.ID(), outside, currentID(t))
	}
	path := filepath.Join(t.TempDir(), "ns")
	expect.NoError(t, netns.Pin(h, path))
	t.Cleanup(func() { expect.NoError(t, netns.Remove(path)) })
	expect.NoError(t, h.Close())
	again := expect.Value(netns.Open(path))(t)
	expect.Same(t, "pinned", again.ID(), h.ID())
	expect.NoError(t, again.Close())
	checkThreads(t, outside)
}

// TestTheFileOfACreatedNamespaceHasItsPath: callers give the name on, as CNI_NETNS for
// example. One without a path must not have that of another namespace.
func TestTheFileOfACreatedNamespaceHasItsPath(t *testing.T) {
	path := filepath.Join(t.TempDir(), "netns")
	created := expect.Value(netns.Create(path))(t)
	made := expect.Value(netns.New())(t)
	t.Cleanup(func() { expect.NoError(t, created.Close(), made.Close(), netns.Remove(path)) })
	expect.Same(t, "name of the created one's file", created.File().Name(), path)
	if name := made.File().Name(); filepath.IsAbs(name) {
		t.Errorf("the file of an unnamed one has the path %s", name)
	}
}

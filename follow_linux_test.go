package cni_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// TestSetupFollowsAPathThatBecameAnothersWhileItWaited for another call on the
// container: what it attaches to is where the path leads when its turn comes.
func TestSetupFollowsAPathThatBecameAnothersWhileItWaited(t *testing.T) {
	s := newStage(t)
	arrived, letGo := make(chan struct{}), make(chan struct{})
	var seen []netns.ID
	p := acting{on: map[string]action{"ADD": func(_ context.Context, r *plugin.Request) error {
		seen = append(seen, r.Container.ID())
		if len(seen) > 1 {
			return nil
		}
		close(arrived)
		<-letGo
		return errors.New("not this time")
	}}}
	r := s.runtime(cni.WithBuiltins(map[string]plugin.Plugin{"p": p}), listOfTypes("net", "p"))
	path := s.container("c1")
	before := idAt(t, path)

	first := begin(setUp(t.Context(), r, "c1", path))
	await(t, "the plugin", arrived)
	alone := openAs(t, before) // by the call, and by what it runs
	second := begin(setUp(t.Context(), r, "c1", path))
	for deadline := time.Now().Add(patience); openAs(t, before) == alone; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for the second call to open the namespace", patience)
		}
	}
	s.forget("c1")
	s.container("c1")
	after := idAt(t, path)
	close(letGo)
	if err := await(t, "the first call", first); err == nil {
		t.Error("the first call succeeded")
	}
	wantNil(t, await(t, "the second call", second))
	wantSame(t, "the plugin's namespaces", seen, []netns.ID{before, after})
	wantNil(t, r.Remove(t.Context(), "c1", ""))
}

func idAt(t *testing.T, path string) netns.ID {
	t.Helper()
	ns, err := netns.Open(path)
	wantNil(t, err)
	wantNil(t, ns.Close())
	return ns.ID()
}

// openAs counts the descriptors of this process that are the namespace.
func openAs(t *testing.T, id netns.ID) (n int) {
	t.Helper()
	fds, err := filepath.Glob("/proc/self/fd/*")
	wantNil(t, err)
	for _, fd := range fds {
		var st unix.Stat_t
		if unix.Stat(fd, &st) == nil && (netns.ID{Dev: uint64(st.Dev), Ino: st.Ino}) == id {
			n++
		}
	}
	return n
}

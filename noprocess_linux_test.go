package cni_test

import (
	"errors"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/sandbox"
)

// TestInProcessStartsNoProcess with no plugin directory at all. That executables
// are noticed shows that the test can fail.
func TestInProcessStartsNoProcess(t *testing.T) {
	h := newRealHost(t)
	cycle := func(r *cni.Runtime, id string) func() error {
		path := h.container(id)
		return func() error {
			_, err := r.Setup(t.Context(), id, path)
			return errors.Join(err, r.Check(t.Context(), id, path), r.Remove(t.Context(), id, path))
		}
	}
	wantNil(t, sandbox.NoProcess(cycle(h.runtime(cni.WithLoNetwork, cni.WithPluginDir(nil)), "c1")))
	wantIs(t, sandbox.NoProcess(cycle(h.real(cni.WithLoNetwork), "c2")), sandbox.ErrProcessStarted)
	wantNil(t, sandbox.NoProcess(cycle(h.real(cni.WithLoNetwork, cni.WithBuiltinPlugins("loopback")), "c3")))
}

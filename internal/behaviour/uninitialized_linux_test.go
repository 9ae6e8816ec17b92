package behaviour_test

import (
	"os"
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// TestNotInitializedHasTheErrorOfTheLastLoad: a program that goes on after a failed
// Load hears the reason from every call.
func TestNotInitializedHasTheErrorOfTheLastLoad(t *testing.T) {
	s := newStage(t)
	r := s.Runtime()
	expect.Same(t, "text", r.Status().Error(), "cni plugin not initialized")
	s.Write("net.d/10-bad.conflist", `{"name": "net"}`)
	loaded := r.Load(cni.WithPluginConfDir(s.Path("net.d")), cni.WithDefaultConf)
	expect.Is(t, loaded, cni.ErrInvalidConfig)
	_, setup := r.Setup(t.Context(), "c1", s.Container("c1"))
	for what, err := range map[string]error{
		"Status": r.Status(), "Setup": setup, "Check": r.Check(t.Context(), "c1", ""),
	} {
		expect.Is(t, err, cni.ErrCNINotInitialized)
		expect.Is(t, err, cni.ErrInvalidConfig)
		if !strings.HasPrefix(err.Error(), "cni plugin not initialized: ") || !strings.Contains(err.Error(), "10-bad.conflist") {
			t.Errorf("%s: %v", what, err)
		}
	}
	expect.NoError(t, r.Load(cni.WithConfListBytes(s.Network("net", "1.0.0", "p"))))
	expect.NoError(t, r.Status())
	expect.NoError(t, r.Load()) // loads nothing, and is no failure
	expect.Same(t, "text", r.Status().Error(), "cni plugin not initialized")
}

// TestDuty_R18_ACheckOfAStrangerIsNotAttachedWhateverThePath: who asks about a container that
// was never attached need not have a namespace.
func TestDuty_R18_ACheckOfAStrangerIsNotAttachedWhateverThePath(t *testing.T) {
	s, r, path := threeNetworks(t)
	file := s.Path("file")
	expect.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, path := range []string{path, "", "/nowhere", file} {
		expect.Is(t, r.Check(t.Context(), "c2", path), cni.ErrNotAttached)
	}
	expect.Same(t, "calls", s.Took(), []string{})
	testhost.MustSetUp(t, r, "c1", path)
	for _, path := range []string{"", "/nowhere", file} { // one that is attached has a namespace
		expect.Is(t, r.Check(t.Context(), "c1", path), cni.ErrInvalidNetNS)
	}
	s.TakeCalls()
}

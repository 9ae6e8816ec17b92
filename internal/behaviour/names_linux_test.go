package behaviour_test

import (
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// TestFault_F51_ANameTooLongBesideDoesNotKeepAContainerAttached: a container on
// one network is removed even if the ID and another loaded network's name are
// together too long for libcni's cache.
func TestFault_F51_ANameTooLongBesideDoesNotKeepAContainerAttached(t *testing.T) {
	s := newStage(t)
	short, long := s.Network("a", "1.0.0", "p"), s.Network(strings.Repeat("b", 180), "1.0.0", "q")
	r := s.Runtime(cni.WithConfListBytes(short))
	id, path := strings.Repeat("c", 90), s.Container("c1")
	testhost.MustSetUp(t, r, id, path)
	expect.NoError(t, r.Load(cni.WithConfListBytes(short), cni.WithConfListBytes(long)))
	s.Took()

	expect.Is(t, errOf(r.Setup(t.Context(), id, path)), cni.ErrInvalidArgument)
	expect.NoError(t, r.Remove(t.Context(), id, path))
	expect.Same(t, "calls", s.Took(), []string{"DEL p " + id + "/eth0"})
	// Once more without a record.
	expect.NoError(t, r.Remove(t.Context(), id, path))
	expect.Same(t, "calls", s.Took(), []string{"DEL p " + id + "/eth0"})
}

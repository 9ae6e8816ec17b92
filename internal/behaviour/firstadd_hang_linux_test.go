package behaviour_test

import (
	"os"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/lock"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
)

// hangOnly makes the plugins of a type wait at one container's gate. All other
// containers' gates are open.
func (s *stage) hangOnly(typ, id string, others ...string) (letGo func()) {
	s.T.Helper()
	gate := s.Gate(id)
	for _, other := range others {
		expect.NoError(s.T, os.WriteFile(s.Path("gate-"+other), nil, 0o600))
	}
	s.On(typ, "ADD", scripted.Action{Block: s.Path("gate-$CNI_CONTAINERID")})
	return func() { s.Arrive(gate)() }
}

// awaitCall waits until a plugin has begun.
func (s *stage) awaitCall() {
	s.T.Helper()
	expect.Eventually(s.T, "a plugin's call", func() bool { return len(s.Calls()) > 0 })
}

func TestFault_F31_AHangingFirstADDKeepsNoOtherNetworkWaiting(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(cni.WithConfListBytes(s.Network("net", "1.0.0", "p", "q")), cni.WithConfListBytes(s.Network("three", "1.0.0", "t", "p")))
	letGo := s.hangOnly("p", "c1", "c2", "c3")
	ctx := t.Context()
	first := testhost.Begin(testhost.SetUp(ctx, r, "c1", s.Container("c1"), testhost.OnNet))
	s.awaitCall()
	expect.Soon(t, "another network", testhost.SetUp(ctx, r, "c2", s.Container("c2"), cni.WithNetwork("three")))
	expect.Soon(t, "the same network", testhost.SetUp(ctx, r, "c3", s.Container("c3"), testhost.OnNet))
	letGo()
	expect.NoError(t, expect.Await(t, "the first", first))
}

func TestFault_F31_AHangingFirstADDOfAnotherProcessBlocksNobody(t *testing.T) {
	s := newStage(t)
	conf := s.Network("net", "1.0.0", "p", "q")
	r := s.Runtime(cni.WithConfListBytes(s.Network("three", "1.0.0", "t", "p")))
	letGo := s.hangOnly("p", "c1", "c2")
	first := s.Elsewhere(conf, "ADD", "c1", s.Container("c1"))
	s.awaitCall()
	expect.Soon(t, "another network", testhost.SetUp(t.Context(), r, "c2", s.Container("c2"), cni.WithNetwork("three")))
	letGo()
	expect.Same(t, "the first", expect.Await(t, "the first", first), "")
}

// TestFault_F31_AnEarlierVersionsFirstADDBlocksNobody: a process of an
// earlier version holds the lock while its plugin hangs.
func TestFault_F31_AnEarlierVersionsFirstADDBlocksNobody(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(cni.WithConfListBytes(s.Network("net", "1.0.0", "p")))
	held := expect.Value(lock.Open(s.Path("state", "embedcni", "locks")).Lock(t.Context(), "first/p"))(t)
	expect.Soon(t, "a Setup", testhost.SetUp(t.Context(), r, "c1", s.Container("c1"), testhost.OnNet))
	expect.NoError(t, held.Release())
}

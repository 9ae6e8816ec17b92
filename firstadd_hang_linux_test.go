package cni_test

import (
	"os"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/lock"
	"github.com/embedcni/cni/internal/scripted"
)

// neighbourly is how long a call may take behind a plugin that hangs: the wait
// of two seconds, and what a busy machine takes for the rest.
const neighbourly = 15 * time.Second

// hangOnly has the plugins of a type wait at the container's gate, which is open
// for all but the one container.
func (s *stage) hangOnly(typ, id string, others ...string) (letGo func()) {
	s.t.Helper()
	gate := s.gate(id)
	for _, other := range others {
		wantNil(s.t, os.WriteFile(s.path("gate-"+other), nil, 0o600))
	}
	s.on(typ, "ADD", scripted.Action{Block: s.path("gate-$CNI_CONTAINERID")})
	return func() { s.arrive(gate)() }
}

// awaitCall waits until a plugin has begun.
func (s *stage) awaitCall() {
	s.t.Helper()
	for end := time.Now().Add(patience); len(s.calls()) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("waited %v for a plugin's call", patience)
		}
	}
}

// wantSoon wants a call to end long before patience does.
func wantSoon(t *testing.T, what string, call func() error) {
	t.Helper()
	start := time.Now()
	wantNil(t, await(t, what, begin(call)))
	took := time.Since(start)
	t.Logf("%s: %v", what, took)
	if took > neighbourly {
		t.Errorf("%s took %v, want at most %v", what, took, neighbourly)
	}
}

func TestFault_F31_AHangingFirstADDKeepsNoOtherNetworkWaiting(t *testing.T) {
	s := newStage(t)
	r := s.runtime(cni.WithConfListBytes(s.network("net", "1.0.0", "p", "q")), cni.WithConfListBytes(s.network("three", "1.0.0", "t", "p")))
	letGo := s.hangOnly("p", "c1", "c2", "c3")
	ctx := t.Context()
	first := begin(setUp(ctx, r, "c1", s.container("c1"), onNet))
	s.awaitCall()
	wantSoon(t, "another network", setUp(ctx, r, "c2", s.container("c2"), cni.WithNetwork("three")))
	wantSoon(t, "the same network", setUp(ctx, r, "c3", s.container("c3"), onNet))
	letGo()
	wantNil(t, await(t, "the first", first))
}

func TestFault_F31_AHangingFirstADDOfAnotherProcessKeepsNobodyWaiting(t *testing.T) {
	s := newStage(t)
	conf := s.network("net", "1.0.0", "p", "q")
	r := s.runtime(cni.WithConfListBytes(s.network("three", "1.0.0", "t", "p")))
	letGo := s.hangOnly("p", "c1", "c2")
	first := s.elsewhere(conf, "ADD", "c1", s.container("c1"))
	s.awaitCall()
	wantSoon(t, "another network", setUp(t.Context(), r, "c2", s.container("c2"), cni.WithNetwork("three")))
	letGo()
	wantSame(t, "the first", await(t, "the first", first), "")
}

// A process of an earlier version has the lock for as long as its plugin hangs.
func TestFault_F31_AnEarlierVersionsFirstADDKeepsNobodyWaiting(t *testing.T) {
	s := newStage(t)
	r := s.runtime(cni.WithConfListBytes(s.network("net", "1.0.0", "p")))
	held, err := lock.Open(s.path("state", "embedcni", "locks")).Lock(t.Context(), "first/p")
	wantNil(t, err)
	wantSoon(t, "a Setup", setUp(t.Context(), r, "c1", s.container("c1"), onNet))
	wantNil(t, held.Release())
}

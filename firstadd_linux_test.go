package cni_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/scripted"
)

// coldStart sets up n containers at once on a network nobody used before.
func coldStart(s *stage, n int, rts ...*cni.Runtime) error {
	var all []<-chan error
	for i := range n {
		id := fmt.Sprintf("c%d", i)
		all = append(all, begin(setUp(s.t.Context(), rts[i%len(rts)], id, s.container(id), onNet)))
	}
	var errs []error
	for _, done := range all {
		errs = append(errs, await(s.t, "a Setup", done))
	}
	return errors.Join(errs...)
}

// wantFirstAlone wants the chain of the container that came first to be over
// before another begins.
func wantFirstAlone(t *testing.T, calls []scripted.Call, containers int) {
	t.Helper()
	order, lines := chainsOf(calls)
	first := order[0]
	wantSame(t, "the first chain", lines[first], []string{
		"0 ADD p " + first + "/eth0", "1 end of ADD p " + first + "/eth0",
		"2 ADD q " + first + "/eth0", "3 end of ADD q " + first + "/eth0"})
	wantSame(t, "containers", len(order), containers)
}

func TestFault_F16_TheFirstADDOfANetworkRunsAlone(t *testing.T) {
	s := newStage(t)
	conf := cni.WithConfListBytes(s.network("net", "1.0.0", "p", "q"))
	s.logEnds("p", "q")
	// Two Runtimes, whose locks meet in the file as those of two processes.
	wantNil(t, coldStart(s, 30, s.runtime(conf).Patiently(), s.runtime(conf).Patiently()))
	wantFirstAlone(t, s.takeCalls(), 30)
}

func TestFault_F16_AfterTheFirstTheyOverlap(t *testing.T) {
	s := newStage(t)
	r := s.runtime(cni.WithConfListBytes(s.network("net", "1.0.0", "p", "q")))
	wantNil(t, setUp(t.Context(), r, "warm", s.container("warm"))())
	var gates []string
	for i := range 5 {
		gates = append(gates, s.gate(fmt.Sprintf("c%d", i)))
	}
	s.on("q", "ADD", scripted.Action{Block: s.path("gate-$CNI_CONTAINERID")})
	done := begin(func() error { return coldStart(s, 5, r) })
	var letGo []func()
	for _, gate := range gates {
		letGo = append(letGo, s.arrive(gate)) // all are there, and none has gone
	}
	for _, f := range letGo {
		f()
	}
	wantNil(t, await(t, "all", done))
}

func TestFault_F16_AFirstADDHoldsUpOnlyWhatSharesAPluginType(t *testing.T) {
	s := newStage(t)
	r := s.runtime(cni.WithConfListBytes(s.network("net", "1.0.0", "p", "q")), cni.WithConfListBytes(s.network("two", "1.0.0", "r")),
		cni.WithConfListBytes(s.network("three", "1.0.0", "t", "q"))).Patiently()
	gate := s.gate("p")
	s.on("p", "ADD", scripted.Action{Block: gate})
	ctx := t.Context()
	first := begin(setUp(ctx, r, "c1", s.container("c1"), onNet))
	letGo := s.arrive(gate)
	wantNil(t, await(t, "a network of other types", begin(setUp(ctx, r, "c2", s.container("c2"), onTwo))))
	shares := begin(setUp(ctx, r, "c3", s.container("c3"), cni.WithNetwork("three")))
	wantSame(t, "calls", s.took(), []string{"ADD p c1/eth0", "ADD r c2/eth1"})
	letGo()
	wantNil(t, await(t, "the first", first))
	wantNil(t, await(t, "the one that shares q", shares))
	wantSame(t, "calls", s.took(), []string{"ADD q c1/eth0", "ADD t c3/eth2", "ADD q c3/eth2"})
}

func TestFault_F16_AFailedFirstADDLeavesTheNextOneFirst(t *testing.T) {
	s := newStage(t)
	conf := cni.WithConfListBytes(s.network("net", "1.0.0", "p", "q"))
	r := s.runtime(conf).Patiently()
	s.on("q", "ADD", says(5, "no"))
	if err := setUp(t.Context(), r, "failed", s.container("failed"))(); err == nil {
		t.Fatal("no error")
	}
	s.takeCalls()
	s.on("q", "ADD", scripted.Action{})
	s.logEnds("p", "q")
	wantNil(t, coldStart(s, 6, r))
	wantFirstAlone(t, s.takeCalls(), 6)
}

func TestFault_F16_TheMarkIsSeenByAnotherProcess(t *testing.T) {
	s := newStage(t)
	conf := s.network("net", "1.0.0", "p")
	wantSame(t, "the other process", await(t, "the other process", s.elsewhere(conf, "ADD", "warm", s.container("warm"))), "")
	r := s.runtime(cni.WithConfListBytes(conf))
	a, b := s.gate("c0"), s.gate("c1")
	s.on("p", "ADD", scripted.Action{Block: s.path("gate-$CNI_CONTAINERID")})
	done := begin(func() error { return coldStart(s, 2, r) })
	letA, letB := s.arrive(a), s.arrive(b) // both at once: neither is the first
	letA()
	letB()
	wantNil(t, await(t, "both", done))
}

func TestFault_F16_AChangedConfigurationHasAFirstADDAgain(t *testing.T) {
	s := newStage(t)
	r := s.runtime(cni.WithConfListBytes(s.network("net", "1.0.0", "p"))).Patiently()
	wantNil(t, setUp(t.Context(), r, "warm", s.container("warm"))())
	s.logEnds("p", "q")
	wantNil(t, r.Load(cni.WithConfListBytes(s.network("net", "1.0.0", "p", "q"))))
	s.takeCalls()
	wantNil(t, coldStart(s, 6, r))
	wantFirstAlone(t, s.takeCalls(), 6)
}

package cni_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
)

// coldStart sets up n containers concurrently on an unused network.
func coldStart(s *testhost.Stage, n int, rts ...*cni.Runtime) error {
	var all []<-chan error
	for i := range n {
		id := fmt.Sprintf("c%d", i)
		all = append(all, testhost.Begin(testhost.SetUp(s.T.Context(), rts[i%len(rts)], id, s.Container(id), testhost.OnNet)))
	}
	var errs []error
	for _, done := range all {
		errs = append(errs, expect.Await(s.T, "a Setup", done))
	}
	return errors.Join(errs...)
}

// wantFirstAlone checks that the first container's chain ends before another
// begins.
func wantFirstAlone(t *testing.T, calls []scripted.Call, containers int) {
	t.Helper()
	order, lines := chainsOf(calls)
	first := order[0]
	expect.Same(t, "the first chain", lines[first], []string{
		"0 ADD p " + first + "/eth0", "1 end of ADD p " + first + "/eth0",
		"2 ADD q " + first + "/eth0", "3 end of ADD q " + first + "/eth0"})
	expect.Same(t, "containers", len(order), containers)
}

func TestFault_F16_TheFirstADDOfANetworkRunsAlone(t *testing.T) {
	s := testhost.NewStage(t)
	conf := cni.WithConfListBytes(s.Network("net", "1.0.0", "p", "q"))
	s.LogEnds("p", "q")
	// Two Runtimes, whose locks meet in the file like those of two processes.
	expect.NoError(t, coldStart(s, 30, s.Runtime(conf).Patiently(), s.Runtime(conf).Patiently()))
	wantFirstAlone(t, s.TakeCalls(), 30)
}

func TestFault_F16_AFirstADDBlocksOnlyNetworksWithItsPluginTypes(t *testing.T) {
	s := testhost.NewStage(t)
	r := s.Runtime(cni.WithConfListBytes(s.Network("net", "1.0.0", "p", "q")), cni.WithConfListBytes(s.Network("two", "1.0.0", "r")),
		cni.WithConfListBytes(s.Network("three", "1.0.0", "t", "q"))).Patiently()
	gate := s.Gate("p")
	s.On("p", "ADD", scripted.Action{Block: gate})
	ctx := t.Context()
	first := testhost.Begin(testhost.SetUp(ctx, r, "c1", s.Container("c1"), testhost.OnNet))
	letGo := s.Arrive(gate)
	expect.NoError(t, expect.Await(t, "a network of other types", testhost.Begin(testhost.SetUp(ctx, r, "c2", s.Container("c2"), testhost.OnTwo))))
	shares := testhost.Begin(testhost.SetUp(ctx, r, "c3", s.Container("c3"), cni.WithNetwork("three")))
	expect.Same(t, "calls", s.Took(), []string{"ADD p c1/eth0", "ADD r c2/eth1"})
	letGo()
	expect.NoError(t, expect.Await(t, "the first", first))
	expect.NoError(t, expect.Await(t, "the one that shares q", shares))
	expect.Same(t, "calls", s.Took(), []string{"ADD q c1/eth0", "ADD t c3/eth2", "ADD q c3/eth2"})
}

func TestFault_F16_AFailedFirstADDLeavesTheNextOneFirst(t *testing.T) {
	s := testhost.NewStage(t)
	r := s.Runtime(cni.WithConfListBytes(s.Network("net", "1.0.0", "p", "q"))).Patiently()
	s.On("q", "ADD", testhost.Says(5, "no"))
	expect.Fails(t, "no error", testhost.SetUp(t.Context(), r, "failed", s.Container("failed"))())
	s.TakeCalls()
	s.On("q", "ADD", scripted.Action{})
	s.LogEnds("p", "q")
	expect.NoError(t, coldStart(s, 6, r))
	wantFirstAlone(t, s.TakeCalls(), 6)
}

// TestFault_F16_AnotherProcessRunsItsFirstAlone: it waits for the one that is alone, and
// then runs alone too, once.
func TestFault_F16_AnotherProcessRunsItsFirstAlone(t *testing.T) {
	s := testhost.NewStage(t)
	conf := s.Network("net", "1.0.0", "p")
	expect.Same(t, "the other process", expect.Await(t, "the other process", s.Elsewhere(conf, "ADD", "warm", s.Container("warm"))), "")
	s.LogEnds("p")
	s.TakeCalls()
	r := s.Runtime(cni.WithConfListBytes(conf)).Patiently()
	expect.NoError(t, coldStart(s, 6, r))
	order, lines := chainsOf(s.TakeCalls())
	expect.Same(t, "the first chain", lines[order[0]], []string{"0 ADD p " + order[0] + "/eth0", "1 end of ADD p " + order[0] + "/eth0"})
	a, b := s.Gate("d0"), s.Gate("d1")
	s.On("p", "ADD", scripted.Action{Block: s.Path("gate-$CNI_CONTAINERID")})
	var both []<-chan error
	for _, id := range []string{"d0", "d1"} {
		both = append(both, testhost.Begin(testhost.SetUp(t.Context(), r, id, s.Container(id), testhost.OnNet)))
	}
	letA, letB := s.Arrive(a), s.Arrive(b) // both concurrently: neither is the first
	letA()
	letB()
	for _, done := range both {
		expect.NoError(t, expect.Await(t, "both", done))
	}
}

// chainsOf splits a log by container and returns the containers in order.
func chainsOf(calls []scripted.Call) (order []string, lines map[string][]string) {
	lines = map[string][]string{}
	for i, line := range testhost.Rendered(calls) {
		id := calls[i].ContainerID
		if !slices.Contains(order, id) {
			order = append(order, id)
		}
		lines[id] = append(lines[id], fmt.Sprint(i, " ", line))
	}
	return order, lines
}

// TestFault_F31_RealPluginsThatShareNothingAreNotHeldUp: a plugin with a
// reference plugin's name that makes nothing shared is examined once. After
// that it does not wait.
func TestFault_F31_RealPluginsThatShareNothingAreNotHeldUp(t *testing.T) {
	h := newRealHost(t)
	gate := h.Path("gate")
	dir := h.Path("wrapped")
	expect.NoError(t, os.MkdirAll(dir, 0o755))
	expect.NoError(t, os.Symlink(testhost.ReferencePlugins(t)+"/bridge", dir+"/bridge"))
	expect.NoError(t, os.Symlink(testhost.ReferencePlugins(t)+"/host-local", dir+"/host-local"))
	script := "#!/bin/sh\nin=$(cat)\ncase $CNI_COMMAND$CNI_CONTAINERID in ADDhangs*) : >" + gate + ".there; cat " + gate + " >/dev/null;; esac\n" +
		"if [ $CNI_COMMAND = ADD ]; then printf '%s' \"$in\" | sed 's/.*\"prevResult\"://; s/,\"runtimeConfig.*//; s/,\"type\":\"portmap\".*//'; fi\n"
	expect.NoError(t, os.WriteFile(dir+"/portmap", []byte(script), 0o755))
	c := testhost.Case{Plugins: []string{testhost.BridgeConf(testhost.HostLocal(testhost.V4Range)), `{"type": "portmap", "capabilities": {"portMappings": true}}`}}
	r := h.Runtime(cni.WithHostNetNS(h.Path("netns", "host")), cni.WithPluginDir([]string{dir}), cni.WithConfListBytes(c.Conf("podnet", "1.0.0", h.Path("ipam"))))
	expect.Value(r.Setup(t.Context(), "c1", h.Container("c1"), testhost.MapPort(8080)))(t)
	expect.NoError(t, syscall.Mkfifo(gate, 0o600))
	hangs := testhost.Begin(testhost.SetUp(t.Context(), r.Patiently(), "hangs", h.Container("hangs"), testhost.MapPort(8081)))
	expect.Eventually(t, "somebody at "+gate, func() bool {
		_, err := os.Stat(gate + ".there")
		return err == nil
	})
	expect.Soon(t, "another", func() error {
		_, err := r.Setup(t.Context(), "c2", h.Container("c2"), testhost.MapPort(8082))
		return err
	})
	expect.NoError(t, os.WriteFile(gate, nil, 0o600))
	expect.NoError(t, expect.Await(t, "the one that hung", hangs))
}

package cni_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/scripted"
)

// twoOwners is a stage with a container to which "first" has attached eth0, and
// "second" eth7. Both have both networks loaded.
func twoOwners(t *testing.T) (s *stage, first, second *cni.Runtime) {
	t.Helper()
	s = newStage(t)
	one, more := cni.WithConfListBytes(s.network("net", "1.0.0", "p")), cni.WithConfListBytes(s.network("more", "1.0.0", "r"))
	first = s.runtime(cni.WithOwner("first"), one, more)
	second = s.runtime(cni.WithOwner("second"), more, one)
	path := s.container("c1")
	wantNil(t, setUp(t.Context(), first, "c1", path, cni.WithNetwork("net"))())
	s.addLink("c1", "eth0")
	wantNil(t, setUp(t.Context(), second, "c1", path, cni.WithNetwork("more", cni.WithInterfaceName("eth7")))())
	s.addLink("c1", "eth7")
	s.takeCalls()
	return s, first, second
}

func collectAll(t testing.TB, r *cni.Runtime) cni.Report {
	t.Helper()
	report, err := r.GC(t.Context(), cni.GCOptions{KeepNone: true})
	wantNil(t, err)
	return *report
}

// owners renders whose is what: "c1/eth0 first".
func owners(t testing.TB, r *cni.Runtime) []string {
	t.Helper()
	all, err := r.Attachments()
	wantNil(t, err)
	lines := []string{}
	for _, a := range all {
		lines = append(lines, fmt.Sprintf("%s/%s %s", a.ContainerID, a.IfName, a.Owner))
	}
	return lines
}

// TestFault_B6_AnAttachmentHasAnOwnerOfItsOwn, so that a second program that adds
// an interface takes nothing from the first.
func TestFault_B6_AnAttachmentHasAnOwnerOfItsOwn(t *testing.T) {
	s, first, second := twoOwners(t)
	wantSame(t, "owners", owners(t, first), []string{"c1/eth0 first", "c1/eth7 second"})
	rec, err := s.records().Load("c1")
	wantNil(t, err)
	wantSame(t, "the owner that earlier versions see", rec.Owner, "first")
	recoverWith(t, first, adopted)
	wantSame(t, "calls of the first", s.took(), []string{"CHECK p c1/eth0"})
	recoverWith(t, second, adopted)
	wantSame(t, "calls of the second", s.took(), []string{"CHECK r c1/eth7"})
	recoverWith(t, s.runtime(cni.WithOwner("third")), cni.Report{})

	wantSame(t, "GC of the second", collectAll(t, second), removed)
	wantSame(t, "calls of the second", s.took(), []string{"DEL r c1/eth7"})
	wantSame(t, "owners", owners(t, first), []string{"c1/eth0 first"})
	recoverWith(t, second, cni.Report{})
	recoverWith(t, first, adopted)
	wantSame(t, "kept", s.pinned("c1"), true)
}

// TestFault_B6_WhatIsLeftWhenTheFirstOwnerGoes is the second's, whole.
func TestFault_B6_WhatIsLeftWhenTheFirstOwnerGoes(t *testing.T) {
	s, first, second := twoOwners(t)
	wantSame(t, "GC of the first", collectAll(t, first), removed)
	wantSame(t, "calls", s.took(), []string{"DEL p c1/eth0"})
	wantSame(t, "owners", owners(t, second), []string{"c1/eth7 second"})
	recoverWith(t, first, cni.Report{})
	recoverWith(t, second, adopted)
	wantSame(t, "kept", s.pinned("c1"), true)
	s.takeCalls()
	wantSame(t, "GC of the second", collectAll(t, second), removed)
	wantSame(t, "calls", s.took(), []string{"DEL r c1/eth7"})
	wantSame(t, "owners", owners(t, second), []string{})
	wantSame(t, "kept", s.pinned("c1"), false)
}

// TestFault_B6_WhatOneOwnerHasLeftHalfDone is not the other's to remove.
func TestFault_B6_WhatOneOwnerHasLeftHalfDone(t *testing.T) {
	for what, spoil := range map[string]func(n *record.Network){
		"killed in its Setup":  func(n *record.Network) { n.State = record.Planned },
		"killed in its Remove": func(n *record.Network) { n.State = record.Deleting },
		"failed to detach":     func(n *record.Network) { n.Failures, n.LastError = 1, "stuck" },
	} {
		t.Run(what, func(t *testing.T) {
			s, first, second := twoOwners(t)
			s.changeRecord("c1", func(rec *record.Record) { spoil(rec.Find("eth7")) })
			recoverWith(t, first, adopted)
			report, err := first.GC(t.Context(), cni.GCOptions{Keep: []string{"c1"}})
			wantNil(t, err)
			wantSame(t, "GC of the first", *report, adopted)
			wantSame(t, "calls", s.took(), []string{"CHECK p c1/eth0"})
			recoverWith(t, second, removed)
			wantSame(t, "calls", s.took(), []string{"DEL r c1/eth7"})
			wantSame(t, "owners", owners(t, first), []string{"c1/eth0 first"})
		})
	}
}

// TestFault_B6_ASetupLeavesWhatAnotherOwnerHas, though the interface is not
// where it was: the container may have renamed it.
func TestFault_B6_ASetupLeavesWhatAnotherOwnerHas(t *testing.T) {
	s, first, second := twoOwners(t)
	wantNil(t, second.Remove(t.Context(), "c1", "", cni.WithNetwork("more")))
	s.delLink("c1", "eth7")
	s.delLink("c1", "eth0")
	s.takeCalls()
	beside := cni.WithNetwork("more", cni.WithInterfaceName("eth8"))
	wantNil(t, setUp(t.Context(), second, "c1", s.path("netns", "c1"), beside)())
	wantSame(t, "calls", s.took(), []string{"ADD r c1/eth8"})
	wantSame(t, "owners", owners(t, first), []string{"c1/eth0 first", "c1/eth8 second"})

	// A namespace that is gone was both owners', and so was all that was in it.
	s.forget("c1")
	wantNil(t, setUp(t.Context(), second, "c1", s.container("c1"), beside)())
	wantSame(t, "calls", s.took(), []string{"DEL r c1/eth8", "DEL p c1/eth0", "ADD r c1/eth8"})
	wantSame(t, "owners", owners(t, first), []string{"c1/eth8 second"})
}

// TestFault_B6_AFailedSetupOfASecondOwnerLeavesTheRecordTheFirsts.
func TestFault_B6_AFailedSetupOfASecondOwnerLeavesTheRecordTheFirsts(t *testing.T) {
	s, first, second := twoOwners(t)
	s.on("r", "ADD", says(11, "later"))
	err := setUp(t.Context(), second, "c1", s.path("netns", "c1"), cni.WithNetwork("more", cni.WithInterfaceName("eth9")))()
	wantSame(t, "errors", messages(err), []string{"r: later"})
	wantSame(t, "owners", owners(t, first), []string{"c1/eth0 first", "c1/eth7 second"})
	s.takeCalls()
	wantNil(t, second.Remove(t.Context(), "c1", "")) // the caller's word is about the container
	wantSame(t, "calls", s.took(), []string{"DEL r c1/eth7", "DEL p c1/eth0"})
	wantSame(t, "owners", owners(t, first), []string{})
}

// TestFault_B6_ADamagedRecordOfTwoOwnersIsNobodysToSweep but the caller's.
func TestFault_B6_ADamagedRecordOfTwoOwnersIsNobodysToSweep(t *testing.T) {
	s, first, second := twoOwners(t)
	s.spoilBase("c1", "{")
	for _, r := range []*cni.Runtime{first, second} {
		report, err := r.Recover(t.Context())
		wantNil(t, err)
		wantSame(t, "removed", report.Removed, nil)
		wantSame(t, "skipped", len(report.Skipped), 1)
		collected := collectAll(t, r)
		wantSame(t, "removed", collected.Removed, nil)
		wantSame(t, "skipped", len(collected.Skipped), 1)
	}
	recoverWith(t, s.runtime(cni.WithOwner("third")), cni.Report{})
	wantSame(t, "calls", s.took(), []string{})
	wantNil(t, first.Remove(t.Context(), "c1", ""))
	calls := s.took()
	slices.Sort(calls)
	wantSame(t, "calls", slices.Compact(calls), []string{"DEL p c1/eth0", "DEL r c1/eth1", "DEL r c1/eth7"})
	wantSame(t, "owners", owners(t, first), []string{})
}

// TestFault_B17_AClockThatWasAheadDelaysNothing: when a removal failed is not
// known then, so it is tried again.
func TestFault_B17_AClockThatWasAheadDelaysNothing(t *testing.T) {
	s, _, conf := inhabited(t, "c1")
	s.changeRecord("c1", func(rec *record.Record) {
		n := rec.Find("eth0")
		n.Failures, n.LastError, n.LastTry = 12, "stuck", time.Now().AddDate(1, 0, 0)
	})
	s.on("p", "DEL", says(5, "stuck again"))
	r := s.restarted(conf)
	report, err := r.Recover(t.Context())
	wantNil(t, err)
	wantSame(t, "failed", messages(report.Failed["c1"]), []string{"p: stuck again"})
	wantSame(t, "calls", s.took(), []string{"DEL q c1/eth0", "DEL p c1/eth0"})
	// From then on the delay is counted from a time that has been.
	report, err = r.Recover(t.Context())
	wantNil(t, err)
	wantSame(t, "calls", s.took(), []string{})
	s.on("p", "DEL", scripted.Action{})
	if report.Failed["c1"] == nil {
		t.Error("tried again at once")
	}
	wantNil(t, r.Remove(t.Context(), "c1", ""))
}

package cni_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/scripted"
)

// inhabited is a stage with containers on one network of version 1.1.0.
func inhabited(t *testing.T, ids ...string) (s *stage, r *cni.Runtime, conf []byte) {
	t.Helper()
	s = newStage(t)
	conf = s.network("net", "1.1.0", "p", "q")
	r = s.runtime(cni.WithOwner("tester"), cni.WithConfListBytes(conf))
	for _, id := range ids {
		wantNil(t, setUp(t.Context(), r, id, s.container(id))())
		s.addLink(id, "eth0")
	}
	s.takeCalls()
	return s, r, conf
}

// valid is what each GC was given as valid attachments, in order.
func valid(t testing.TB, calls []scripted.Call) []string {
	t.Helper()
	var lists []string
	for _, c := range calls {
		if c.Verb != "GC" {
			continue
		}
		var given []types.GCAttachment
		wantNil(t, json.Unmarshal([]byte(request(t, c)["cni.dev/valid-attachments"]), &given))
		names := []string{}
		for _, a := range given {
			names = append(names, a.ContainerID+"/"+a.IfName)
		}
		slices.Sort(names)
		lists = append(lists, strings.Join(names, " "))
	}
	return lists
}

func TestDuty_R21_R22_GCRemovesFirstAndSaysWhatIsValid(t *testing.T) {
	s, r, _ := inhabited(t, "c1", "c2", "c3")
	report, err := r.GC(t.Context(), cni.GCOptions{Keep: []string{"c2", "c3"}})
	wantNil(t, err)
	wantSame(t, "report", *report, cni.Report{Adopted: []string{"c2", "c3"}, Removed: []string{"c1"}})
	calls := s.takeCalls()
	wantSame(t, "calls", rendered(calls), []string{"DEL q c1/eth0", "DEL p c1/eth0", "GC p /", "GC q /"})
	wantSame(t, "valid attachments", valid(t, calls), []string{"c2/eth0 c3/eth0", "c2/eth0 c3/eth0"})
}

func TestFault_F25_GCWithAnEmptyListIsRefused(t *testing.T) {
	s, r, _ := inhabited(t, "c1")
	_, err := r.GC(t.Context(), cni.GCOptions{})
	wantIs(t, err, cni.ErrInvalidArgument)
	wantSame(t, "calls", s.took(), []string{})
	report, err := r.GC(t.Context(), cni.GCOptions{KeepNone: true})
	wantNil(t, err)
	wantSame(t, "report", *report, cni.Report{Removed: []string{"c1"}})
	calls := s.takeCalls()
	wantSame(t, "calls", rendered(calls), []string{"DEL q c1/eth0", "DEL p c1/eth0", "GC p /", "GC q /"})
	wantSame(t, "valid attachments", valid(t, calls), []string{"", ""})
}

func TestFault_F25_GCTouchesOnlyItsOwnersContainers(t *testing.T) {
	s, r, conf := inhabited(t, "c1")
	other := s.runtime(cni.WithOwner("other"), cni.WithConfListBytes(conf))
	report, err := other.GC(t.Context(), cni.GCOptions{KeepNone: true})
	wantNil(t, err)
	wantSame(t, "report", *report, cni.Report{})
	calls := s.takeCalls()
	wantSame(t, "calls", rendered(calls), []string{"GC p /", "GC q /"})
	wantSame(t, "valid attachments", valid(t, calls), []string{"c1/eth0", "c1/eth0"})
	wantSame(t, "on record", recorded(t, r), []string{"c1/eth0 attached"})

	// What only libcni's cache knows, another runtime has attached.
	s.unrecord("c1")
	_, err = r.GC(t.Context(), cni.GCOptions{KeepNone: true})
	wantNil(t, err)
	calls = s.takeCalls()
	wantSame(t, "calls", rendered(calls), []string{"GC p /", "GC q /"})
	wantSame(t, "valid attachments", valid(t, calls), []string{"c1/eth0", "c1/eth0"})
}

func TestDuty_R7_DisableGCAndNetworksWithoutGC(t *testing.T) {
	s := newStage(t)
	script := s.plugin(scripted.Script{}, "p")
	r := s.runtime(cni.WithConfListBytes(s.network("old", "1.0.0", "q")), cni.WithConfListBytes(fmt.Appendf(nil,
		`{"cniVersion": "1.1.0", "name": "net", "disableGC": true, "plugins": [{"type": "p", "script": %q}]}`, script)))
	path := s.container("c1")
	wantNil(t, setUp(t.Context(), r, "c1", path, cni.WithNetwork("net"))())
	s.takeCalls()
	_, err := r.GC(t.Context(), cni.GCOptions{KeepNone: true})
	wantNil(t, err)
	wantSame(t, "calls", s.took(), []string{"DEL p c1/eth1"})
}

func TestDuty_R35_GCAsksAllAndReturnsAllErrors(t *testing.T) {
	s := newStage(t)
	r := s.runtime(cni.WithConfListBytes(s.network("one", "1.1.0", "p", "q")), cni.WithConfListBytes(s.network("two", "1.1.0", "r")))
	s.on("p", "GC", says(5, "no"))
	s.on("r", "GC", says(6, "neither"))
	path := s.container("c1")
	wantNil(t, setUp(t.Context(), r, "c1", path)())
	s.on("p", "DEL", says(7, "stuck"))
	s.takeCalls()
	report, err := r.GC(t.Context(), cni.GCOptions{KeepNone: true})
	wantSame(t, "errors", messages(err), []string{"p: no", "r: neither"})
	wantSame(t, "failed", messages(report.Failed["c1"]), []string{"p: stuck"})
	wantSame(t, "failures", messages(report.Err()), []string{"p: stuck"})
	calls := s.takeCalls()
	wantSame(t, "calls", rendered(calls), []string{"DEL r c1/eth1", "DEL q c1/eth0", "DEL p c1/eth0", "GC p /", "GC q /", "GC r /"})
	wantSame(t, "valid attachments", valid(t, calls), []string{"c1/eth0", "c1/eth0", "c1/eth1"})
	wantSame(t, "on record", recorded(t, r), []string{"c1/eth0 failed", "c1/eth1 failed"})
}

// TestDuty_R35_GCReportsWhatCannotBeRead: as long as it is not known what is
// attached, no plugin is told what is not.
func TestDuty_R35_GCReportsWhatCannotBeRead(t *testing.T) {
	s, r, _ := inhabited(t, "c1", "c2")
	wantNil(t, os.WriteFile(s.recordFile("c1")+".json", []byte("{"), 0o600))
	_, err := r.GC(t.Context(), cni.GCOptions{Keep: []string{"c1", "c2"}})
	if err == nil || !strings.Contains(err.Error(), "what is attached is not known") {
		t.Errorf("error %v, want that what is attached is not known", err)
	}
	wantSame(t, "calls", s.took(), []string{})
}

// TestGCKeepsWhatADamagedRecordSaysOfItself: the log names the interfaces, if
// not the networks, so they are valid on each.
func TestGCKeepsWhatADamagedRecordSaysOfItself(t *testing.T) {
	s, r, _ := inhabited(t, "c1", "c2")
	wantNil(t, os.RemoveAll(s.path("state", "results")))
	s.spoilBase("c1", "{")
	_, err := r.GC(t.Context(), cni.GCOptions{Keep: []string{"c1", "c2"}})
	wantNil(t, err)
	wantSame(t, "valid attachments", valid(t, s.takeCalls()), []string{"c1/eth0 c2/eth0", "c1/eth0 c2/eth0"})
}

func TestGCDryRunRemovesNothing(t *testing.T) {
	s, r, _ := inhabited(t, "c1", "c2")
	report, err := r.GC(t.Context(), cni.GCOptions{Keep: []string{"c2"}, DryRun: true})
	wantNil(t, err)
	wantSame(t, "report", *report, cni.Report{Removed: []string{"c1"}})
	wantSame(t, "calls", s.took(), []string{})
	wantSame(t, "on record", len(recorded(t, r)), 2)
}

func TestDuty_R25_GCWaitsForADDAndDELAndTheyForIt(t *testing.T) {
	s, r, conf := inhabited(t, "c1")
	s.logEnds("p", "q")
	add, del, gc := s.gate("add"), s.gate("del"), s.gate("gc")
	s.on("p", "ADD", scripted.Action{Block: add})
	s.on("p", "DEL", scripted.Action{Block: del})
	s.on("p", "GC", scripted.Action{Block: gc})
	collect := func() error {
		_, err := r.GC(t.Context(), cni.GCOptions{Keep: []string{"c1", "c2"}})
		return err
	}

	adding := s.elsewhere(conf, "ADD", "c2", s.container("c2"))
	added := s.arrive(add)
	removing := begin(func() error { return r.Remove(t.Context(), "c1", "") })
	removed := s.arrive(del)
	short, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errors.New("impatient"))
	defer cancel()
	_, err := r.GC(short, cni.GCOptions{KeepNone: true})
	wantIs(t, err, context.DeadlineExceeded)
	collecting := begin(collect)
	added()
	removed()
	wantSame(t, "the other process", await(t, "ADD", adding), "")
	wantNil(t, await(t, "Remove", removing))
	letGo := s.arrive(gc)
	wantSame(t, "GC came last", lastOf(s.took()), "GC p /")

	// Here and in another process ADD and DEL wait for it.
	s.on("p", "ADD", scripted.Action{})
	s.on("p", "DEL", scripted.Action{})
	adding = s.elsewhere(conf, "ADD", "c3", s.container("c3"))
	removing = begin(func() error { return r.Remove(t.Context(), "c2", "") })
	short, cancel = context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errors.New("impatient"))
	defer cancel()
	wantIs(t, setUp(short, r, "c4", s.container("c4"))(), context.DeadlineExceeded)
	wantSame(t, "calls beside GC", s.took(), []string{})
	letGo()
	wantNil(t, await(t, "GC", collecting))
	wantSame(t, "the other process", await(t, "ADD", adding), "")
	wantNil(t, await(t, "Remove", removing))
	wantSame(t, "the first calls", s.took()[:3], []string{"end of GC p /", "GC q /", "end of GC q /"})
}

func lastOf(lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	return lines[len(lines)-1]
}

func TestDuty_R25_GCInAnotherProcessWaitsAndIsWaitedFor(t *testing.T) {
	s, r, conf := inhabited(t, "c1")
	s.logEnds("p")
	add, gc := s.gate("add"), s.gate("gc")
	s.on("p", "ADD", scripted.Action{Block: add})
	s.on("p", "GC", scripted.Action{Block: gc})
	adding := begin(setUp(t.Context(), r, "c2", s.container("c2")))
	added := s.arrive(add)
	collecting := s.elsewhere(conf, "GC", "c1", "")
	wantSame(t, "calls", s.took(), []string{"ADD p c2/eth0"})
	added()
	wantNil(t, await(t, "ADD", adding))
	letGo := s.arrive(gc)
	short, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errors.New("impatient"))
	defer cancel()
	wantIs(t, setUp(short, r, "c3", s.container("c3"))(), context.DeadlineExceeded)
	wantSame(t, "calls", s.took(), []string{"end of ADD p c2/eth0", "ADD q c2/eth0", "GC p /"})
	letGo()
	wantSame(t, "the other process", await(t, "GC", collecting), "")
	wantSame(t, "on record", len(recorded(t, r)), 2) // it is another owner
}

func TestDuty_R25_GCAndRemovalsOfWhatItRemovesDoNotBlockEachOther(t *testing.T) {
	ids := []string{"c1", "c2", "c3", "c4", "c5", "c6"} // their locks lie on both sides of GC's
	s, r, _ := inhabited(t, ids...)
	all, err := r.Attachments() // in the order of GC
	wantNil(t, err)
	gate := s.gate("del")
	s.on("q", "DEL", scripted.Action{Block: gate})
	var report *cni.Report
	collecting := begin(func() (err error) { report, err = r.GC(t.Context(), cni.GCOptions{KeepNone: true}); return err })
	letGo := s.arrive(gate)
	s.on("q", "DEL", scripted.Action{})
	var removing []<-chan error
	for _, a := range all[1:] {
		removing = append(removing, begin(func() error { return r.Remove(t.Context(), a.ContainerID, "") }))
	}
	wantSame(t, "removals that wait", s.blocked("/internal/lock.(*queue).acquire", len(removing)), len(removing))
	letGo()
	wantNil(t, await(t, "GC", collecting))
	slices.Sort(report.Removed)
	wantSame(t, "report", *report, cni.Report{Removed: ids})
	for _, done := range removing {
		wantNil(t, await(t, "Remove", done))
	}
	wantSame(t, "on record", recorded(t, r), []string{})
}

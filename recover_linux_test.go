package cni_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/netns"
)

// restarted is the Runtime of a program that has been started again.
func (s *stage) restarted(conf []byte, opts ...cni.Opt) *cni.Runtime {
	s.t.Helper()
	return s.runtime(append([]cni.Opt{cni.WithOwner("tester"), cni.WithConfListBytes(conf)}, opts...)...)
}

// recoverWith wants a report of Recover.
func recoverWith(t testing.TB, r *cni.Runtime, want cni.Report) {
	t.Helper()
	report, err := r.Recover(t.Context())
	wantNil(t, err)
	wantSame(t, "report", *report, want)
}

var adopted, removed = cni.Report{Adopted: []string{"c1"}}, cni.Report{Removed: []string{"c1"}}

func TestRecoverAdoptsWhatIsWell(t *testing.T) {
	s, _, conf := inhabited(t, "c1")
	r := s.restarted(conf)
	recoverWith(t, r, adopted)
	wantSame(t, "calls", s.took(), []string{"CHECK p c1/eth0", "CHECK q c1/eth0"})
	wantSame(t, "on record", recorded(t, r), []string{"c1/eth0 attached"})

	// Where only a descriptor kept it, that was the last process's.
	wantNil(t, netns.Remove(s.pin("c1")))
	recoverWith(t, r, adopted)
	wantSame(t, "kept", s.pinned("c1"), true)
	s.takeCalls()
	wantNil(t, r.Remove(t.Context(), "c1", ""))
	wantSame(t, "calls", s.took(), []string{"DEL q c1/eth0", "DEL p c1/eth0"})
}

func TestRecoverAdoptsWithoutCHECKWhereThereIsNone(t *testing.T) {
	s := newStage(t)
	conf := s.network("net", "0.3.1", "p")
	wantNil(t, setUp(t.Context(), s.restarted(conf), "c1", s.container("c1"))())
	s.addLink("c1", "eth0")
	s.takeCalls()
	recoverWith(t, s.restarted(conf), adopted)
	wantSame(t, "calls", s.took(), []string{})
}

func TestRecoverRemovesWhatIsNotWell(t *testing.T) {
	dels := []string{"DEL q c1/eth0", "DEL p c1/eth0"}
	for what, tt := range map[string]struct {
		happens func(s *stage)
		calls   []string
		netNS   string // "c1": the path, "pin": where it is kept
	}{
		"killed in ADD": {func(s *stage) {
			s.changeRecord("c1", func(rec *record.Record) { rec.Networks[0].State = record.Planned })
		}, dels, "c1"},
		"CHECK fails":           {func(s *stage) { s.on("p", "CHECK", says(5, "no")) }, append([]string{"CHECK p c1/eth0"}, dels...), "c1"},
		"the interface is gone": {func(s *stage) { s.delLink("c1", "eth0") }, dels, "c1"},
		"the namespace is gone": {func(s *stage) { s.forget("c1") }, dels, "pin"},
		"F26, another boot": {func(s *stage) {
			s.changeRecord("c1", func(rec *record.Record) { rec.Boot = "another" })
		}, dels, ""},
	} {
		t.Run(what, func(t *testing.T) {
			s, _, conf := inhabited(t, "c1")
			tt.happens(s)
			recoverWith(t, s.restarted(conf), removed)
			calls := s.takeCalls()
			wantSame(t, "calls", rendered(calls), tt.calls)
			netNS := map[string]string{"c1": s.path("netns", "c1"), "pin": s.pin("c1")}[tt.netNS]
			wantSame(t, "CNI_NETNS", calls[len(calls)-1].NetNS, netNS)
			wantSame(t, "kept", s.pinned("c1"), false)
			recoverWith(t, s.restarted(conf), cni.Report{})
		})
	}
}

// TestRecoverRemovesOnlyWhatWasToGo: an attachment beside the others that its
// own Setup or Remove has left half done is no reason to detach a container that
// lives.
func TestRecoverRemovesOnlyWhatWasToGo(t *testing.T) {
	extra := func(rec *record.Record) *record.Network { return rec.Find("eth7") }
	for what, tt := range map[string]struct {
		happens func(s *stage)
		calls   []string
		want    cni.Report
	}{
		"nothing": {func(*stage) {}, nil, adopted},
		"killed in its Setup": {func(s *stage) {
			s.changeRecord("c1", func(rec *record.Record) { extra(rec).State = record.Planned })
		}, []string{"DEL r c1/eth7"}, adopted},
		"killed in its Remove": {func(s *stage) {
			s.changeRecord("c1", func(rec *record.Record) { extra(rec).State = record.Deleting })
		}, []string{"DEL r c1/eth7"}, adopted},
		"the container is not well either": {func(s *stage) {
			s.changeRecord("c1", func(rec *record.Record) { extra(rec).State = record.Deleting })
			s.delLink("c1", "eth0")
		}, []string{"DEL r c1/eth7", "DEL q c1/eth0", "DEL p c1/eth0"}, removed},
	} {
		t.Run(what, func(t *testing.T) {
			s, r, conf := inhabited(t, "c1")
			more := s.network("more", "1.0.0", "r")
			wantNil(t, r.Load(cni.WithConfListBytes(conf), cni.WithConfListBytes(more)))
			wantNil(t, setUp(t.Context(), r, "c1", s.path("netns", "c1"), cni.WithNetwork("more", cni.WithInterfaceName("eth7")))())
			s.addLink("c1", "eth7")
			tt.happens(s)
			s.takeCalls()
			recoverWith(t, s.restarted(conf), tt.want)
			calls := slices.DeleteFunc(s.took(), func(c string) bool { return strings.HasPrefix(c, "CHECK ") })
			wantSame(t, "calls", calls, append([]string{}, tt.calls...))
			wantSame(t, "kept", s.pinned("c1"), len(tt.want.Adopted) > 0)
		})
	}
}

// TestAFailedRemovalOfAnAttachmentLeavesTheContainer: what else the container is
// attached to stays, and what failed is tried again by Recover and by GC.
func TestAFailedRemovalOfAnAttachmentLeavesTheContainer(t *testing.T) {
	s, r, conf := inhabited(t, "c1")
	more := s.network("more", "1.0.0", "r")
	wantNil(t, r.Load(cni.WithConfListBytes(conf), cni.WithConfListBytes(more)))
	beside := cni.WithNetwork("more", cni.WithInterfaceName("eth7"))
	wantNil(t, setUp(t.Context(), r, "c1", s.path("netns", "c1"), beside)())
	s.addLink("c1", "eth7")
	s.on("r", "DEL", says(5, "stuck"))
	wantSame(t, "Remove", messages(r.Remove(t.Context(), "c1", "", beside)), []string{"r: stuck"})
	wantSame(t, "on record", recorded(t, r), []string{"c1/eth0 attached", "c1/eth7 failed"})
	for what, again := range map[string]func() (*cni.Report, error){
		"Recover": func() (*cni.Report, error) { return r.Recover(t.Context()) },
		"GC":      func() (*cni.Report, error) { return r.GC(t.Context(), cni.GCOptions{Keep: []string{"c1"}}) },
	} {
		report, err := again()
		wantNil(t, err)
		wantSame(t, what+": adopted", report.Adopted, []string{"c1"})
		if failed := report.Failed["c1"]; failed == nil || !strings.HasPrefix(failed.Error(), "not tried again yet: in ") {
			t.Errorf("%s at once: failed with %v, want that it is too early", what, failed)
		}
	}
	s.on("r", "DEL", scripted.Action{})
	s.takeCalls()
	var report *cni.Report
	var err error
	for end := time.Now().Add(patience); (report == nil || report.Failed != nil) && time.Now().Before(end); time.Sleep(time.Millisecond) {
		report, err = r.GC(t.Context(), cni.GCOptions{Keep: []string{"c1"}})
		wantNil(t, err)
	}
	wantSame(t, "report", *report, adopted)
	wantSame(t, "on record", recorded(t, r), []string{"c1/eth0 attached"})
}

func TestRecoverLeavesOtherOwnersAlone(t *testing.T) {
	s, r, conf := inhabited(t, "c1")
	recoverWith(t, s.restarted(conf, cni.WithOwner("other")), cni.Report{})
	wantSame(t, "calls", s.took(), []string{})
	wantSame(t, "on record", recorded(t, r), []string{"c1/eth0 attached"})
}

func TestDamagedRecordsOfOtherOwnersAreLeftAloneToo(t *testing.T) {
	s, r, conf := inhabited(t, "c1")
	s.spoilBase("c1", "{")
	other := s.restarted(conf, cni.WithOwner("other"))
	recoverWith(t, other, cni.Report{})
	report, err := other.GC(t.Context(), cni.GCOptions{KeepNone: true})
	wantNil(t, err)
	wantSame(t, "report", *report, cni.Report{})
	calls := s.takeCalls()
	wantSame(t, "calls", rendered(calls), []string{"GC p /", "GC q /"})
	wantSame(t, "valid attachments", valid(t, calls), []string{"c1/eth0", "c1/eth0"})
	wantSame(t, "on record", recorded(t, r), []string{"c1/ unknown"})
}

func TestRecoverDoesNotRemoveWhatItCannotCheck(t *testing.T) {
	s, r, conf := inhabited(t, "c1")
	wantNil(t, os.Remove(s.path("bin", "p")))
	report, err := s.restarted(conf).Recover(t.Context())
	wantNil(t, err)
	wantIs(t, report.Failed["c1"], cni.ErrPluginNotFound)
	wantSame(t, "calls", s.took(), []string{})
	wantSame(t, "on record", recorded(t, r), []string{"c1/eth0 attached"})
}

func TestRecoverSweepsADamagedRecord(t *testing.T) {
	for what, content := range spoiled {
		s, _, conf := inhabited(t, "c1")
		wantNil(t, os.RemoveAll(s.path("state", "results")))
		s.spoilBase("c1", content)
		r := s.restarted(conf)
		wantSame(t, what+": on record", recorded(t, r), []string{"c1/ unknown"})
		recoverWith(t, r, removed)
		calls := s.takeCalls()
		wantSame(t, what, prevResults(t, calls), []string{"DEL q 10.9.0.2/24", "DEL p 10.9.0.2/24"})
		wantSame(t, what+": CNI_NETNS", calls[0].NetNS, s.pin("c1"))
		wantSame(t, what+": on record", recorded(t, r), []string{})
		wantSame(t, what+": kept", s.pinned("c1"), false)
	}
}

func TestRecoverDiscardsWhatSaysNothing(t *testing.T) {
	s, _, conf := inhabited(t, "c1")
	wantNil(t, os.WriteFile(s.recordFile("c1")+".json", nil, 0o600))
	var log logged
	r := s.restarted(conf, log.logger())
	recoverWith(t, r, cni.Report{Removed: []string{"record " + filepath.Base(s.recordFile("c1"))}})
	if lines := log.lines("ERROR"); len(lines) != 1 || !strings.Contains(lines[0], "what it recorded may be left") {
		t.Errorf("errors logged: %q", lines)
	}
	wantSame(t, "on record", recorded(t, r), []string{})
	wantSame(t, "kept", s.pinned("c1"), false)
	wantSame(t, "calls", s.took(), []string{})
}

func TestSetupOverADamagedRecord(t *testing.T) {
	s, r, _ := inhabited(t, "c1")
	s.spoilBase("c1", "{")
	path := s.path("netns", "c1")
	// It lives, whatever is wanted beside it.
	wantIs(t, setUp(t.Context(), r, "c1", path)(), cni.ErrAlreadyAttached)
	wantIs(t, setUp(t.Context(), r, "c1", path, cni.WithNetwork("net", cni.WithInterfaceName("eth7")))(), cni.ErrAlreadyAttached)
	wantSame(t, "calls", s.took(), []string{})
	s.delLink("c1", "eth0")
	wantNil(t, setUp(t.Context(), r, "c1", path)())
	wantSame(t, "calls", s.took(), []string{"DEL q c1/eth0", "DEL p c1/eth0", "ADD p c1/eth0", "ADD q c1/eth0"})
	wantSame(t, "on record", recorded(t, r), []string{"c1/eth0 attached"})
}

// killedRuntime is a stage on which a runtime was killed while its plugin p
// does what ADD says, for c1.
func killedRuntime(t *testing.T, add scripted.Action) (s *stage, r *cni.Runtime, letGo func()) {
	t.Helper()
	s = newStage(t)
	conf := s.network("net", "1.0.0", "p", "q")
	gate := s.gate("p")
	add.Block = gate
	s.on("p", "ADD", add)
	process, done := s.process(conf, "ADD", "c1", s.container("c1"))
	letGo = s.arrive(gate)
	wantNil(t, process.Kill())
	wantSame(t, "the runtime", await(t, "the end of the runtime", done), "signal: killed")
	r = s.runtime(cni.WithConfListBytes(conf)) // the same owner: the same program
	wantSame(t, "on record", recorded(t, r), []string{"c1/eth0 attaching"})
	wantSame(t, "calls", s.took(), []string{"ADD p c1/eth0"})
	return s, r, letGo
}

func TestFault_F1_AnOrphanPluginIsWaitedFor(t *testing.T) {
	s, r, letGo := killedRuntime(t, scripted.Action{})
	s.logEnds("p")
	var report *cni.Report
	done := begin(func() (err error) { report, err = r.Recover(t.Context()); return err })
	wantSame(t, "calls beside the orphan", s.took(), []string{})
	letGo()
	wantNil(t, await(t, "Recover", done))
	wantSame(t, "report", *report, removed)
	wantSame(t, "calls", s.took(), []string{"DEL q c1/eth0", "DEL p c1/eth0", "end of DEL p c1/eth0"})
	wantSame(t, "processes", children(t), nil)
}

func TestFault_F1_AnOrphanPluginThatHangsIsKilled(t *testing.T) {
	s, r, letGo := killedRuntime(t, scripted.Action{Hang: true, Fork: true})
	letGo()
	start := time.Now()
	recoverWith(t, r, removed)
	t.Logf("recovered in %v", time.Since(start))
	wantSame(t, "calls", s.took(), []string{"DEL q c1/eth0", "DEL p c1/eth0"})
	wantSame(t, "processes", children(t), nil)
	wantSame(t, "on record", recorded(t, r), []string{})
}

func TestAFailedRemovalStaysRecordedAndIsTriedEverLessOften(t *testing.T) {
	s, _, conf := inhabited(t, "c1")
	s.forget("c1")
	s.on("p", "DEL", says(5, "stuck"))
	r := s.restarted(conf)
	report, err := r.Recover(t.Context())
	wantNil(t, err)
	wantSame(t, "failed", messages(report.Failed["c1"]), []string{"p: stuck"})
	wantSame(t, "calls", s.took(), []string{"DEL q c1/eth0", "DEL p c1/eth0"})
	wantSame(t, "on record", recorded(t, r), []string{"c1/eth0 failed"})
	for end := time.Now().Add(patience); len(s.calls()) == 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
		_, err = r.Recover(t.Context())
		wantNil(t, err)
	}
	wantSame(t, "calls after a while", s.took(), []string{"DEL q c1/eth0", "DEL p c1/eth0"})

	rec, err := s.records().Load("c1")
	wantNil(t, err)
	for range 10 {
		wantNil(t, s.records().Append(rec, record.Entry{IfName: "eth0", Error: "stuck again"}))
	}
	report, err = r.Recover(t.Context())
	wantNil(t, err)
	text := report.Failed["c1"].Error()
	if !strings.HasPrefix(text, "not tried again yet: in ") || !strings.HasSuffix(text, ", after 12 failures: stuck again") {
		t.Errorf("after 12 failures: %q", text)
	}
	wantSame(t, "calls", s.took(), []string{})
	s.on("p", "DEL", scripted.Action{})
	wantNil(t, r.Remove(t.Context(), "c1", "")) // does not wait
	wantSame(t, "calls", s.took(), []string{"DEL q c1/eth0", "DEL p c1/eth0"})
	wantSame(t, "on record", recorded(t, r), []string{})
}

func TestRealRecoverAfterReboot(t *testing.T) {
	h := newRealHost(t)
	c := everything()
	conf := cni.WithConfListBytes(c.conf("podnet", "1.0.0", h.path("ipam")))
	path := h.mortal("c1")
	files := h.audit()
	_, err := h.real(conf).Setup(t.Context(), "c1", path, onePort)
	wantNil(t, err)
	h.reboot(path)
	recoverWith(t, h.real(), removed) // with nothing loaded
	h.wantClean(files)
}

package cni_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
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

func TestRecoverRemovesWhatIsGone(t *testing.T) {
	dels := []string{"DEL q c1/eth0", "DEL p c1/eth0"}
	for what, tt := range map[string]struct {
		happens func(s *stage)
		netNS   string // that DEL is given
	}{
		"killed in ADD": {func(s *stage) {
			s.changeRecord("c1", func(rec *record.Record) { rec.Networks[0].State = record.Planned })
		}, "c1"},
		"killed in DEL": {func(s *stage) {
			s.changeRecord("c1", func(rec *record.Record) { rec.Networks[0].State = record.Deleting })
		}, "c1"},
		"the namespace is gone, and is kept nowhere": {func(s *stage) {
			s.forget("c1")
			wantNil(s.t, netns.Remove(s.pin("c1")))
		}, ""},
		"F26, another boot": {func(s *stage) {
			s.changeRecord("c1", func(rec *record.Record) { rec.Boot = "another" })
		}, ""},
	} {
		t.Run(what, func(t *testing.T) {
			s, _, conf := inhabited(t, "c1")
			tt.happens(s)
			recoverWith(t, s.restarted(conf), removed)
			calls := s.takeCalls()
			wantSame(t, "calls", rendered(calls), dels)
			wantSame(t, "CNI_NETNS", calls[len(calls)-1].NetNS, map[string]string{"c1": s.path("netns", "c1")}[tt.netNS])
			wantSame(t, "kept", s.pinned("c1"), false)
			recoverWith(t, s.restarted(conf), cni.Report{})
		})
	}
}

// TestFault_F35_RecoverKeepsWhatLives: whatever CHECK says or fails to say, an
// attachment that was recorded as added stays as long as its namespace lives.
func TestFault_F35_RecoverKeepsWhatLives(t *testing.T) {
	for what, tt := range map[string]struct {
		happens func(s *stage)
		opts    []cni.Opt
		reason  string // of its being in Kept
		is      error
	}{
		"CHECK fails":                             {happens: func(s *stage) { s.on("p", "CHECK", says(5, "no")) }, reason: "failed (check): no (code 5)"},
		"CHECK is not answered":                   {happens: func(s *stage) { s.on("p", "CHECK", scripted.Action{Exit: 1}) }, reason: "ended without an error message"},
		"CHECK is to come later":                  {happens: func(s *stage) { s.on("p", "CHECK", says(11, "busy")) }, reason: "busy (code 11)"},
		"CHECK hangs":                             {happens: func(s *stage) { s.on("p", "CHECK", scripted.Action{Hang: true}) }, opts: []cni.Opt{cni.WithTimeouts(cni.Timeouts{Check: 200 * time.Millisecond})}, is: context.DeadlineExceeded},
		"the plugin is killed":                    {happens: func(s *stage) { s.on("p", "CHECK", scripted.Action{Signal: 9}) }, reason: "killed by signal 9"},
		"the plugin is gone":                      {happens: func(s *stage) { wantNil(s.t, os.Remove(s.path("bin", "p"))) }, is: cni.ErrPluginNotFound},
		"the plugin is not safe":                  {happens: func(s *stage) { s.replacePlugin("p", "#!/bin/sh\n", 0o777) }, is: cni.ErrInsecureFile},
		"the interpreter is gone":                 {happens: func(s *stage) { s.replacePlugin("p", "#!/no/such\n", 0o755) }, reason: "no such file"},
		"the interface is gone":                   {happens: func(s *stage) { s.delLink("c1", "eth0") }, reason: "interface eth0 of network \"net\" is gone", is: cni.ErrNotAttached},
		"the path is gone, the namespace is kept": {happens: func(s *stage) { s.forget("c1") }, reason: "no longer leads to its namespace", is: cni.ErrInvalidNetNS},
		"the record is damaged":                   {happens: func(s *stage) { s.spoilBase("c1", "{") }, reason: "damaged"},
	} {
		t.Run(what, func(t *testing.T) {
			s, _, conf := inhabited(t, "c1")
			before := s.pinned("c1")
			tt.happens(s)
			var log logged
			r := s.restarted(conf, append(tt.opts, log.logger())...)
			report, err := r.Recover(t.Context())
			wantNil(t, err)
			why := report.Kept["c1"]
			if why == nil || !strings.Contains(why.Error(), tt.reason) {
				t.Errorf("kept because of %v, want %q", why, tt.reason)
			}
			if tt.is != nil {
				wantIs(t, why, tt.is)
			}
			wantSame(t, "report", *report, cni.Report{Adopted: []string{"c1"}, Kept: map[string]error{"c1": why}})
			wantSame(t, "failures", report.Err(), nil)
			for _, call := range s.took() {
				if strings.HasPrefix(call, "DEL") {
					t.Errorf("%s of a container that lives", call)
				}
			}
			wantSame(t, "the namespace is kept", s.pinned("c1"), before)
			if lines := log.lines("WARN"); len(lines) == 0 || !strings.Contains(strings.Join(lines, ""), "c1") {
				t.Errorf("warnings logged: %q", lines)
			}
			// It is the caller's to end it.
			if err := os.Remove(s.path("bin", "p")); !errors.Is(err, fs.ErrNotExist) {
				wantNil(t, err)
			}
			s.on("p", "DEL", scripted.Action{})
			wantNil(t, r.Remove(t.Context(), "c1", ""))
			wantSame(t, "on record", recorded(t, r), []string{})
		})
	}
}

// replacePlugin makes the plugin another file.
func (s *stage) replacePlugin(typ, content string, mode os.FileMode) {
	s.t.Helper()
	path := s.path("bin", typ)
	wantNil(s.t, os.Remove(path)) // a link to the test binary
	wantNil(s.t, os.WriteFile(path, []byte(content), mode))
	wantNil(s.t, os.Chmod(path, mode)) // whatever the umask
}

// TestFault_F58_WhatAddDidNotMakeCannotBeMissed: the result names no interface
// that the kernel would know by the attachment's name.
func TestFault_F58_WhatAddDidNotMakeCannotBeMissed(t *testing.T) {
	for what, interfaces := range map[string]string{
		"loopback under another name": `[{"name": "lo", "sandbox": "/ns"}]`,
		"vfio-pci":                    `[{"name": "eth0", "sandbox": "/ns", "pciID": "0000:3b:02.1"}]`,
		"vhost-user":                  `[{"name": "eth0", "sandbox": "/ns", "socketPath": "/run/vhost.sock"}]`,
		"only on the host":            `[{"name": "br0"}]`,
		"none":                        `[]`,
	} {
		t.Run(what, func(t *testing.T) {
			s := newStage(t)
			out := fmt.Sprintf(`{"cniVersion": "1.1.0", "interfaces": %s}`, interfaces)
			s.on("p", "ADD", scripted.Action{Stdout: &out})
			conf := s.network("net", "1.1.0", "p")
			r := s.runtime(cni.WithOwner("tester"), cni.WithConfListBytes(conf))
			path := s.container("c1")
			wantNil(t, setUp(t.Context(), r, "c1", path)())
			wantNil(t, r.Check(t.Context(), "c1", path))
			recoverWith(t, s.restarted(conf), adopted)
			wantIs(t, setUp(t.Context(), s.restarted(conf), "c1", path)(), cni.ErrAlreadyAttached)
			wantNil(t, r.Remove(t.Context(), "c1", path))
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
		kept    bool
	}{
		"nothing": {func(*stage) {}, nil, false},
		"killed in its Setup": {func(s *stage) {
			s.changeRecord("c1", func(rec *record.Record) { extra(rec).State = record.Planned })
		}, []string{"DEL r c1/eth7"}, false},
		"killed in its Remove": {func(s *stage) {
			s.changeRecord("c1", func(rec *record.Record) { extra(rec).State = record.Deleting })
		}, []string{"DEL r c1/eth7"}, false},
		"the container is not well either": {func(s *stage) {
			s.changeRecord("c1", func(rec *record.Record) { extra(rec).State = record.Deleting })
			s.delLink("c1", "eth0")
		}, []string{"DEL r c1/eth7"}, true},
	} {
		t.Run(what, func(t *testing.T) {
			s, r, conf := inhabited(t, "c1")
			more := s.network("more", "1.0.0", "r")
			wantNil(t, r.Load(cni.WithConfListBytes(conf), cni.WithConfListBytes(more)))
			wantNil(t, setUp(t.Context(), r, "c1", s.path("netns", "c1"), cni.WithNetwork("more", cni.WithInterfaceName("eth7")))())
			s.addLink("c1", "eth7")
			tt.happens(s)
			s.takeCalls()
			report, err := s.restarted(conf).Recover(t.Context())
			wantNil(t, err)
			wantSame(t, "adopted", report.Adopted, []string{"c1"})
			wantSame(t, "not known to be healthy", report.Kept["c1"] != nil, tt.kept)
			calls := slices.DeleteFunc(s.took(), func(c string) bool { return strings.HasPrefix(c, "CHECK ") })
			wantSame(t, "calls", calls, append([]string{}, tt.calls...))
			left := []string{"c1/eth0 attached", "c1/eth7 attached"}
			if tt.calls != nil {
				left = left[:1]
			}
			wantSame(t, "on record", recorded(t, r), left)
			wantSame(t, "kept", s.pinned("c1"), true)
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
		if failed := report.Failed["c1"]; failed == nil || !strings.HasPrefix(failed.Error(), "container c1 could not be removed: not tried again yet: in ") {
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

func TestRecoverSweepsADamagedRecord(t *testing.T) {
	for what, content := range spoiled {
		s, _, conf := inhabited(t, "c1")
		wantNil(t, os.RemoveAll(s.path("state", "results")))
		s.spoilBase("c1", content)
		s.forget("c1")
		wantNil(t, netns.Unpin(s.pin("c1"))) // as after a reboot
		r := s.restarted(conf)
		wantSame(t, what+": on record", recorded(t, r), []string{"c1/ unknown"})
		recoverWith(t, r, removed)
		calls := s.takeCalls()
		wantSame(t, what, prevResults(t, calls), []string{"DEL q 10.9.0.2/24", "DEL p 10.9.0.2/24"})
		wantSame(t, what+": CNI_NETNS", calls[0].NetNS, "")
		wantSame(t, what+": on record", recorded(t, r), []string{})
		wantSame(t, what+": kept", s.pinned("c1"), false)
	}
}

// TestRecoverKeepsADamagedRecordWithoutAMount: where mounts are not allowed,
// nothing tells whether the container lives.
func TestRecoverKeepsADamagedRecordWithoutAMount(t *testing.T) {
	s, _, conf := inhabited(t, "c1")
	s.spoilBase("c1", "{")
	wantNil(t, netns.Remove(s.pin("c1")))
	r := s.restarted(conf)
	report, err := r.Recover(t.Context())
	wantNil(t, err)
	wantIs(t, report.Kept["c1"], record.ErrBad)
	wantSame(t, "report", *report, cni.Report{Adopted: []string{"c1"}, Kept: report.Kept})
	wantSame(t, "calls", s.took(), []string{})
	wantSame(t, "on record", recorded(t, r), []string{"c1/ unknown"})
}

// TestRecoverDiscardsWhatSaysNothing, unless a container may live in the namespace
// that is kept for it: without the record GC would take its addresses for stale.
func TestRecoverDiscardsWhatSaysNothing(t *testing.T) {
	s, _, conf := inhabited(t, "c1")
	wantNil(t, os.WriteFile(s.recordFile("c1")+".json", nil, 0o600))
	var log logged
	r := s.restarted(conf, log.logger())
	name := "record " + filepath.Base(s.recordFile("c1"))
	report, err := r.Recover(t.Context())
	wantNil(t, err)
	wantIs(t, report.Skipped[name], record.ErrBad)
	wantSame(t, "report", *report, cni.Report{Skipped: report.Skipped})
	wantSame(t, "errors logged", log.lines("ERROR"), []string{})
	wantSame(t, "kept", s.pinned("c1"), true)

	wantNil(t, netns.Unpin(s.pin("c1"))) // as after a reboot
	recoverWith(t, r, cni.Report{Removed: []string{name}})
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

// TestRecoverLeavesALockedContainerForLast: a call of another process that hangs
// on one container holds up no other, and is reported.
func TestRecoverLeavesALockedContainerForLast(t *testing.T) {
	s := newStage(t)
	conf := s.network("net", "1.0.0", "p", "q")
	r := s.runtime(cni.WithConfListBytes(conf)) // the same owner as the other process
	for _, id := range []string{"c2", "c3"} {
		wantNil(t, setUp(t.Context(), r, id, s.container(id))())
		s.addLink(id, "eth0")
	}
	gate := s.gate("p")
	s.on("p", "ADD", scripted.Action{Block: gate})
	process, done := s.process(conf, "ADD", "c1", s.container("c1"))
	letGo := s.arrive(gate)
	wantNil(t, process.Signal(syscall.SIGSTOP)) // it neither ends nor gives up
	s.takeCalls()
	start := time.Now()
	report, err := r.Recover(t.Context())
	wantNil(t, err)
	if took := time.Since(start); took > patience {
		t.Errorf("Recover took %v", took)
	}
	slices.Sort(report.Adopted)
	why := report.Skipped["c1"]
	wantSame(t, "report", *report, cni.Report{Adopted: []string{"c2", "c3"}, Skipped: map[string]error{"c1": why}})
	wantIs(t, why, cni.ErrBusy)
	wantSame(t, "calls", len(s.took()), 4) // CHECK of both plugins of both
	wantNil(t, process.Signal(syscall.SIGCONT))
	letGo()
	wantSame(t, "the other runtime", await(t, "its end", done), "")
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
	wantNil(t, netns.Remove(s.pin("c1")))
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
	if !strings.HasPrefix(text, "container c1 could not be removed: not tried again yet: in ") || !strings.Contains(text, ", after 12 failures: stuck again; call Remove") {
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

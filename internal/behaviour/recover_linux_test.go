package behaviour_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// restarted returns the Runtime of a restarted program.
func (s *stage) restarted(conf []byte, opts ...cni.Opt) *cni.Runtime {
	s.T.Helper()
	return s.Runtime(append([]cni.Opt{cni.WithOwner("tester"), cni.WithConfListBytes(conf)}, opts...)...)
}

var adopted, removed = cni.Report{Adopted: []string{"c1"}}, cni.Report{Removed: []string{"c1"}}

func TestRecoverAdoptsHealthyContainers(t *testing.T) {
	s, _, conf := inhabited(t, "c1")
	r := s.restarted(conf)
	wantRecover(t, r, adopted)
	expect.Same(t, "calls", s.Took(), []string{"CHECK p c1/eth0", "CHECK q c1/eth0"})
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c1/eth0 attached"})

	// If only a descriptor kept it, that was the last process's.
	expect.NoError(t, netns.Remove(s.Pin("c1")))
	wantRecover(t, r, adopted)
	expect.Same(t, "kept", s.Pinned("c1"), true)
	s.TakeCalls()
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
	expect.Same(t, "calls", s.Took(), []string{"DEL q c1/eth0", "DEL p c1/eth0"})
}

func TestRecoverAdoptsWithoutCHECKWhereThereIsNone(t *testing.T) {
	s := newStage(t)
	conf := s.Network("net", "0.3.1", "p")
	testhost.MustSetUp(t, s.restarted(conf), "c1", s.Container("c1"))
	s.AddLink("c1", "eth0")
	s.TakeCalls()
	wantRecover(t, s.restarted(conf), adopted)
	expect.Same(t, "calls", s.Took(), []string{})
}

func TestRecoverRemovesDeadContainers(t *testing.T) {
	dels := []string{"DEL q c1/eth0", "DEL p c1/eth0"}
	for what, tt := range map[string]struct {
		happens func(s *stage)
		netNS   string // DEL's CNI_NETNS
	}{
		"killed in ADD": {func(s *stage) {
			s.ChangeRecord("c1", func(rec *record.Record) { rec.Attachments[0].State = record.Planned })
		}, "c1"},
		"killed in DEL": {func(s *stage) {
			s.ChangeRecord("c1", func(rec *record.Record) { rec.Attachments[0].State = record.Deleting })
		}, "c1"},
		"the namespace is gone, and is kept nowhere": {func(s *stage) {
			s.RemoveNetNS("c1")
			expect.NoError(s.T, netns.Remove(s.Pin("c1")))
		}, ""},
		"F26, another boot": {func(s *stage) {
			s.ChangeRecord("c1", func(rec *record.Record) { rec.Boot = "another" })
		}, ""},
	} {
		t.Run(what, func(t *testing.T) {
			s, _, conf := inhabited(t, "c1")
			tt.happens(s)
			wantRecover(t, s.restarted(conf), removed)
			calls := s.TakeCalls()
			expect.Same(t, "calls", testhost.Rendered(calls), dels)
			expect.Same(t, "CNI_NETNS", calls[len(calls)-1].NetNS, map[string]string{"c1": s.Path("netns", "c1")}[tt.netNS])
			expect.Same(t, "kept", s.Pinned("c1"), false)
			wantRecover(t, s.restarted(conf), cni.Report{})
		})
	}
}

// replacePlugin replaces the plugin's file.
func (s *stage) replacePlugin(typ, content string, mode os.FileMode) {
	s.T.Helper()
	path := s.Path("bin", typ)
	expect.NoError(s.T, os.Remove(path)) // a link to the test binary
	expect.NoError(s.T, os.WriteFile(path, []byte(content), mode))
	expect.NoError(s.T, os.Chmod(path, mode)) // despite the umask
}

// TestFault_F58_AnInterfaceThatAddDidNotMakeIsNotMissed: the result names no interface
// by which the kernel would know the attachment.
func TestFault_F58_AnInterfaceThatAddDidNotMakeIsNotMissed(t *testing.T) {
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
			s.On("p", "ADD", scripted.Action{Stdout: &out})
			conf := s.Network("net", "1.1.0", "p")
			r := s.Runtime(cni.WithOwner("tester"), cni.WithConfListBytes(conf))
			path := s.Container("c1")
			testhost.MustSetUp(t, r, "c1", path)
			expect.NoError(t, r.Check(t.Context(), "c1", path))
			wantRecover(t, s.restarted(conf), adopted)
			expect.Is(t, testhost.SetUp(t.Context(), s.restarted(conf), "c1", path)(), cni.ErrAlreadyAttached)
			expect.NoError(t, r.Remove(t.Context(), "c1", path))
		})
	}
}

// TestRecoverRemovesOnlyHalfDoneAttachments: an attachment that its own Setup or Remove
// left half done does not make Recover detach the other attachments of a
// running container.
func TestRecoverRemovesOnlyHalfDoneAttachments(t *testing.T) {
	extra := func(rec *record.Record) *record.Attachment { return rec.Find("eth7") }
	for what, tt := range map[string]struct {
		happens func(s *stage)
		calls   []string
		kept    bool
	}{
		"nothing": {func(*stage) {}, nil, false},
		"killed in its Setup": {func(s *stage) {
			s.ChangeRecord("c1", func(rec *record.Record) { extra(rec).State = record.Planned })
		}, []string{"DEL r c1/eth7"}, false},
		"killed in its Remove": {func(s *stage) {
			s.ChangeRecord("c1", func(rec *record.Record) { extra(rec).State = record.Deleting })
		}, []string{"DEL r c1/eth7"}, false},
		"the container is not well either": {func(s *stage) {
			s.ChangeRecord("c1", func(rec *record.Record) { extra(rec).State = record.Deleting })
			s.DelLink("c1", "eth0")
		}, []string{"DEL r c1/eth7"}, true},
	} {
		t.Run(what, func(t *testing.T) {
			s, r, conf := inhabited(t, "c1")
			more := s.Network("more", "1.0.0", "r")
			expect.NoError(t, r.Load(cni.WithConfListBytes(conf), cni.WithConfListBytes(more)))
			testhost.MustSetUp(t, r, "c1", s.Path("netns", "c1"), cni.WithNetwork("more", cni.WithInterfaceName("eth7")))
			s.AddLink("c1", "eth7")
			tt.happens(s)
			s.TakeCalls()
			report := expect.Value(s.restarted(conf).Recover(t.Context()))(t)
			expect.Same(t, "adopted", report.Adopted, []string{"c1"})
			expect.Same(t, "not known to be healthy", report.Kept["c1"] != nil, tt.kept)
			calls := slices.DeleteFunc(s.Took(), func(c string) bool { return strings.HasPrefix(c, "CHECK ") })
			expect.Same(t, "calls", calls, append([]string{}, tt.calls...))
			left := []string{"c1/eth0 attached", "c1/eth7 attached"}
			if tt.calls != nil {
				left = left[:1]
			}
			expect.Same(t, "on record", testhost.Recorded(t, r), left)
			expect.Same(t, "kept", s.Pinned("c1"), true)
		})
	}
}

// TestAFailedRemovalOfAnAttachmentLeavesTheContainer: the container's other
// attachments stay. Recover and GC retry the removal.
func TestAFailedRemovalOfAnAttachmentLeavesTheContainer(t *testing.T) {
	s, r, conf := inhabited(t, "c1")
	more := s.Network("more", "1.0.0", "r")
	expect.NoError(t, r.Load(cni.WithConfListBytes(conf), cni.WithConfListBytes(more)))
	beside := cni.WithNetwork("more", cni.WithInterfaceName("eth7"))
	testhost.MustSetUp(t, r, "c1", s.Path("netns", "c1"), beside)
	s.AddLink("c1", "eth7")
	s.On("r", "DEL", testhost.Says(5, "stuck"))
	expect.Same(t, "Remove", testhost.Messages(r.Remove(t.Context(), "c1", "", beside)), []string{"r: stuck"})
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c1/eth0 attached", "c1/eth7 failed"})
	for what, again := range map[string]func() (*cni.Report, error){
		"Recover": func() (*cni.Report, error) { return r.Recover(t.Context()) },
		"GC":      func() (*cni.Report, error) { return r.GC(t.Context(), cni.GCOptions{Keep: []string{"c1"}}) },
	} {
		report := expect.Value(again())(t)
		expect.Same(t, what+": adopted", report.Adopted, []string{"c1"})
		failed := report.Failed["c1"]
		expect.That(t, failed != nil && strings.HasPrefix(failed.Error(), "container c1 could not be removed: not tried again yet: in "),
			"%s at once: failed with %v, want that it is too early", what, failed)
	}
	s.On("r", "DEL", scripted.Action{})
	s.TakeCalls()
	var report *cni.Report
	expect.Eventually(t, "a GC that removes the rest", func() bool {
		report = expect.Value(r.GC(t.Context(), cni.GCOptions{Keep: []string{"c1"}}))(t)
		return report.Failed == nil
	})
	expect.Same(t, "report", *report, adopted)
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c1/eth0 attached"})
}

func TestDamagedRecordsOfOtherOwnersAreLeftAloneToo(t *testing.T) {
	s, r, conf := inhabited(t, "c1")
	spoilBase(s.Host, "c1", "{")
	other := s.restarted(conf, cni.WithOwner("other"))
	wantRecover(t, other, cni.Report{})
	expect.Same(t, "report", *expect.Value(other.GC(t.Context(), cni.GCOptions{KeepNone: true}))(t), cni.Report{})
	calls := s.TakeCalls()
	expect.Same(t, "calls", testhost.Rendered(calls), []string{"GC p /", "GC q /"})
	expect.Same(t, "valid attachments", valid(t, calls), []string{"c1/eth0", "c1/eth0"})
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c1/ unknown"})
}

func TestRecoverSweepsADamagedRecord(t *testing.T) {
	for what, content := range spoiled {
		s, _, conf := inhabited(t, "c1")
		expect.NoError(t, os.RemoveAll(s.Path("state", "results")))
		spoilBase(s.Host, "c1", content)
		s.RemoveNetNS("c1")
		expect.NoError(t, nettest.Unpin(s.Pin("c1"))) // as after a reboot
		r := s.restarted(conf)
		expect.Same(t, what+": on record", testhost.Recorded(t, r), []string{"c1/ unknown"})
		wantRecover(t, r, removed)
		calls := s.TakeCalls()
		expect.Same(t, what, prevResults(t, calls), []string{"DEL q 10.9.0.2/24", "DEL p 10.9.0.2/24"})
		expect.Same(t, what+": CNI_NETNS", calls[0].NetNS, "")
		expect.Same(t, what+": on record", testhost.Recorded(t, r), []string{})
		expect.Same(t, what+": kept", s.Pinned("c1"), false)
	}
}

// TestRecoverKeepsADamagedRecordWithoutAMount: without mounts nothing shows
// whether the container lives.
func TestRecoverKeepsADamagedRecordWithoutAMount(t *testing.T) {
	s, _, conf := inhabited(t, "c1")
	spoilBase(s.Host, "c1", "{")
	expect.NoError(t, netns.Remove(s.Pin("c1")))
	r := s.restarted(conf)
	report := expect.Value(r.Recover(t.Context()))(t)
	expect.Is(t, report.Kept["c1"], record.ErrBad)
	expect.Same(t, "report", *report, cni.Report{Adopted: []string{"c1"}, Kept: report.Kept})
	expect.Same(t, "calls", s.Took(), []string{})
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c1/ unknown"})
}

// TestRecoverDiscardsEmptyRecords unless a container may live in its pinned
// namespace. Without the record GC would treat its addresses as stale.
func TestRecoverDiscardsEmptyRecords(t *testing.T) {
	s, _, conf := inhabited(t, "c1")
	expect.NoError(t, os.WriteFile(s.RecordFile("c1")+".json", nil, 0o600))
	var log testhost.Log
	r := s.restarted(conf, log.Logger())
	name := "record " + filepath.Base(s.RecordFile("c1"))
	report := expect.Value(r.Recover(t.Context()))(t)
	expect.Is(t, report.Skipped[name], record.ErrBad)
	expect.Same(t, "report", *report, cni.Report{Skipped: report.Skipped})
	expect.Same(t, "errors logged", log.Lines("ERROR"), []string{})
	expect.Same(t, "kept", s.Pinned("c1"), true)

	expect.NoError(t, nettest.Unpin(s.Pin("c1"))) // as after a reboot
	wantRecover(t, r, cni.Report{Left: []string{
		name + " says nothing and was deleted; if its container is known, Remove or CleanUp finds the leftovers"}})
	lines := log.Lines("ERROR")
	expect.That(t, len(lines) == 1 && strings.Contains(lines[0], "leftovers of their attachments are possible"), "errors logged: %q", lines)
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{})
	expect.Same(t, "kept", s.Pinned("c1"), false)
	expect.Same(t, "calls", s.Took(), []string{})
}

func TestSetupOverADamagedRecord(t *testing.T) {
	s, r, _ := inhabited(t, "c1")
	spoilBase(s.Host, "c1", "{")
	path := s.Path("netns", "c1")
	// It stays alive, whatever is added beside it.
	expect.Is(t, testhost.SetUp(t.Context(), r, "c1", path)(), cni.ErrAlreadyAttached)
	expect.Is(t, testhost.SetUp(t.Context(), r, "c1", path, cni.WithNetwork("net", cni.WithInterfaceName("eth7")))(), cni.ErrAlreadyAttached)
	expect.Same(t, "calls", s.Took(), []string{})
	s.DelLink("c1", "eth0")
	testhost.MustSetUp(t, r, "c1", path)
	expect.Same(t, "calls", s.Took(), []string{"DEL q c1/eth0", "DEL p c1/eth0", "ADD p c1/eth0", "ADD q c1/eth0"})
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c1/eth0 attached"})
}

// killedRuntime returns a stage whose runtime was killed while its plugin p ran
// the action add for c1.
func killedRuntime(t *testing.T, add scripted.Action) (s *stage, r *cni.Runtime, letGo func()) {
	t.Helper()
	s = newStage(t)
	conf := s.Network("net", "1.0.0", "p", "q")
	gate := s.Gate("p")
	add.Block = gate
	s.On("p", "ADD", add)
	process, done := s.ProcessFor(testhost.Job{Verb: "ADD", ID: "c1", NetNS: s.Container("c1"), Conf: conf}, nil)
	letGo = s.Arrive(gate)
	expect.NoError(t, process.Kill())
	expect.Same(t, "the runtime", expect.Await(t, "the end of the runtime", done), "signal: killed")
	r = s.Runtime(cni.WithConfListBytes(conf)) // same program, same owner
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c1/eth0 attaching"})
	expect.Same(t, "calls", s.Took(), []string{"ADD p c1/eth0"})
	return s, r, letGo
}

func TestFault_F1_AnOrphanPluginIsWaitedFor(t *testing.T) {
	s, r, letGo := killedRuntime(t, scripted.Action{})
	s.LogEnds("p")
	var report *cni.Report
	done := testhost.Begin(func() (err error) { report, err = r.Recover(t.Context()); return err })
	expect.Same(t, "calls beside the orphan", s.Took(), []string{})
	letGo()
	expect.NoError(t, expect.Await(t, "Recover", done))
	expect.Same(t, "report", *report, removed)
	expect.Same(t, "calls", s.Took(), []string{"DEL q c1/eth0", "DEL p c1/eth0", "end of DEL p c1/eth0"})
	expect.Same(t, "processes", children(t), nil)
}

func TestAFailedRemovalStaysRecordedAndIsTriedEverLessOften(t *testing.T) {
	s, _, conf := inhabited(t, "c1")
	s.RemoveNetNS("c1")
	expect.NoError(t, netns.Remove(s.Pin("c1")))
	s.On("p", "DEL", testhost.Says(5, "stuck"))
	r := s.restarted(conf)
	expect.Same(t, "failed", testhost.Messages(expect.Value(r.Recover(t.Context()))(t).Failed["c1"]), []string{"p: stuck"})
	expect.Same(t, "calls", s.Took(), []string{"DEL q c1/eth0", "DEL p c1/eth0"})
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c1/eth0 failed"})
	expect.Eventually(t, "another attempt", func() bool {
		expect.Value(r.Recover(t.Context()))(t)
		return len(s.Calls()) > 0
	})
	expect.Same(t, "calls after a while", s.Took(), []string{"DEL q c1/eth0", "DEL p c1/eth0"})

	rec := expect.Value(s.Records().Load("c1"))(t)
	for range 10 {
		expect.NoError(t, s.Records().Append(rec, record.Entry{IfName: "eth0", Error: "stuck again"}))
	}
	report := expect.Value(r.Recover(t.Context()))(t)
	text := report.Failed["c1"].Error()
	expect.That(t, strings.HasPrefix(text, "container c1 could not be removed: not tried again yet: in ") && strings.Contains(text, ", after 12 failures: stuck again; fix the cause"),
		"after 12 failures: %q", text)
	expect.Same(t, "calls", s.Took(), []string{})
	s.On("p", "DEL", scripted.Action{})
	expect.NoError(t, r.Remove(t.Context(), "c1", "")) // does not wait
	expect.Same(t, "calls", s.Took(), []string{"DEL q c1/eth0", "DEL p c1/eth0"})
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{})
}

func TestFault_F26_RealRecoverAfterReboot(t *testing.T) {
	h := newRealHost(t)
	c := everything()
	conf := cni.WithConfListBytes(c.Conf("podnet", "1.0.0", h.Path("ipam")))
	path := h.Mortal("c1")
	files := h.Audit()
	testhost.MustSetUp(t, h.Real(conf), "c1", path, onePort)
	h.reboot(path)
	wantRecover(t, h.Real(), removed) // loads nothing
	h.WantClean(files)
}

// TestRecoverKeepsTheCachedResultOfTheLiving: the record of a container whose plugins write
// no file is empty, as after a power cut, and its namespace is not kept. While the host's
// end of its interface exists it lives, and its DEL needs the cached result.
func TestRecoverKeepsTheCachedResultOfTheLiving(t *testing.T) {
	h := newRealHost(t)
	before := h.Audit()
	r := h.Runtime(cni.WithBuiltinPlugins(), cni.WithoutReaping(), cni.WithConfListBytes([]byte(`{"cniVersion": "1.0.0", "name": "net", "plugins": [
		{"type": "bridge", "ipam": {"type": "static", "addresses": [{"address": "10.1.0.2/24"}]}}]}`)))
	path := h.Mortal("c1")
	empty := func() {
		t.Helper()
		expect.NoError(t, os.WriteFile(h.RecordFile("c1")+".json", nil, 0o600))
		expect.Same(t, "records that were deleted", len(expect.Value(r.Recover(t.Context()))(t).Left), 1)
	}
	testhost.MustSetUp(t, r, "c1", path)
	expect.NoError(t, netns.Remove(h.Pin("c1")))
	empty()
	expect.Same(t, "cached while it lives", h.Cached(), []string{"net-c1-eth0"})

	expect.NoError(t, netns.Remove(path))
	expect.Eventually(t, "the end of the interface", func() bool {
		return !slices.ContainsFunc(h.Audit(), func(line string) bool { return strings.Contains(line, "type veth") })
	})
	empty()
	expect.Same(t, "cached after its end", h.Cached(), []string{})
	h.WantClean(before)
}

package behaviour_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
)

// twoOwners returns a stage with a container to which "first" has attached
// eth0, and "second" eth7. Both have loaded both networks.
func twoOwners(t *testing.T) (s *stage, first, second *cni.Runtime) {
	t.Helper()
	s = newStage(t)
	one, more := cni.WithConfListBytes(s.Network("net", "1.0.0", "p")), cni.WithConfListBytes(s.Network("more", "1.0.0", "r"))
	first = s.Runtime(cni.WithOwner("first"), one, more)
	second = s.Runtime(cni.WithOwner("second"), more, one)
	path := s.Container("c1")
	expect.NoError(t, testhost.SetUp(t.Context(), first, "c1", path, cni.WithNetwork("net"))())
	s.AddLink("c1", "eth0")
	expect.NoError(t, testhost.SetUp(t.Context(), second, "c1", path, cni.WithNetwork("more", cni.WithInterfaceName("eth7")))())
	s.AddLink("c1", "eth7")
	s.TakeCalls()
	return s, first, second
}

func collectAll(t testing.TB, r *cni.Runtime) cni.Report {
	t.Helper()
	report, err := r.GC(t.Context(), cni.GCOptions{KeepNone: true})
	expect.NoError(t, err)
	return *report
}

// owners renders attachments with their owners: "c1/eth0 first".
func owners(t testing.TB, r *cni.Runtime) []string {
	t.Helper()
	all, err := r.Attachments()
	expect.NoError(t, err)
	lines := []string{}
	for _, a := range all {
		lines = append(lines, fmt.Sprintf("%s/%s %s", a.ContainerID, a.IfName, a.Owner))
	}
	return lines
}

// TestFault_F41_AnAttachmentHasAnOwnerOfItsOwn, so a second program that adds
// an interface takes nothing from the first.
func TestFault_F41_AnAttachmentHasAnOwnerOfItsOwn(t *testing.T) {
	s, first, second := twoOwners(t)
	expect.Same(t, "owners", owners(t, first), []string{"c1/eth0 first", "c1/eth7 second"})
	rec, err := s.Records().Load("c1")
	expect.NoError(t, err)
	expect.Same(t, "the owner that earlier versions see", rec.Owner, "first")
	testhost.WantRecover(t, first, adopted)
	expect.Same(t, "calls of the first", s.Took(), []string{"CHECK p c1/eth0"})
	testhost.WantRecover(t, second, adopted)
	expect.Same(t, "calls of the second", s.Took(), []string{"CHECK r c1/eth7"})
	testhost.WantRecover(t, s.Runtime(cni.WithOwner("third")), cni.Report{})

	expect.Same(t, "GC of the second", collectAll(t, second), removed)
	expect.Same(t, "calls of the second", s.Took(), []string{"DEL r c1/eth7"})
	expect.Same(t, "owners", owners(t, first), []string{"c1/eth0 first"})
	testhost.WantRecover(t, second, cni.Report{})
	testhost.WantRecover(t, first, adopted)
	expect.Same(t, "kept", s.Pinned("c1"), true)
}

// TestFault_F41_TheRestWhenTheFirstOwnerGoes belongs entirely to the second.
func TestFault_F41_TheRestWhenTheFirstOwnerGoes(t *testing.T) {
	s, first, second := twoOwners(t)
	expect.Same(t, "GC of the first", collectAll(t, first), removed)
	expect.Same(t, "calls", s.Took(), []string{"DEL p c1/eth0"})
	expect.Same(t, "owners", owners(t, second), []string{"c1/eth7 second"})
	testhost.WantRecover(t, first, cni.Report{})
	testhost.WantRecover(t, second, adopted)
	expect.Same(t, "kept", s.Pinned("c1"), true)
	s.TakeCalls()
	expect.Same(t, "GC of the second", collectAll(t, second), removed)
	expect.Same(t, "calls", s.Took(), []string{"DEL r c1/eth7"})
	expect.Same(t, "owners", owners(t, second), []string{})
	expect.Same(t, "kept", s.Pinned("c1"), false)
}

// TestFault_F41_AnOwnersHalfDoneAttachment must not be removed by the other.
func TestFault_F41_AnOwnersHalfDoneAttachment(t *testing.T) {
	for what, spoil := range map[string]func(n *record.Attachment){
		"killed in its Setup":  func(n *record.Attachment) { n.State = record.Planned },
		"killed in its Remove": func(n *record.Attachment) { n.State = record.Deleting },
		"failed to detach":     func(n *record.Attachment) { n.Failures, n.LastError = 1, "stuck" },
	} {
		t.Run(what, func(t *testing.T) {
			s, first, second := twoOwners(t)
			s.ChangeRecord("c1", func(rec *record.Record) { spoil(rec.Find("eth7")) })
			testhost.WantRecover(t, first, adopted)
			report, err := first.GC(t.Context(), cni.GCOptions{Keep: []string{"c1"}})
			expect.NoError(t, err)
			expect.Same(t, "GC of the first", *report, adopted)
			expect.Same(t, "calls", s.Took(), []string{"CHECK p c1/eth0"})
			testhost.WantRecover(t, second, removed)
			expect.Same(t, "calls", s.Took(), []string{"DEL r c1/eth7"})
			expect.Same(t, "owners", owners(t, first), []string{"c1/eth0 first"})
		})
	}
}

// TestFault_F41_ASetupLeavesAnotherOwnersAttachment even if the interface is
// missing: the container may have renamed it.
func TestFault_F41_ASetupLeavesAnotherOwnersAttachment(t *testing.T) {
	s, first, second := twoOwners(t)
	expect.NoError(t, second.Remove(t.Context(), "c1", "", cni.WithNetwork("more")))
	s.DelLink("c1", "eth7")
	s.DelLink("c1", "eth0")
	s.TakeCalls()
	beside := cni.WithNetwork("more", cni.WithInterfaceName("eth8"))
	expect.NoError(t, testhost.SetUp(t.Context(), second, "c1", s.Path("netns", "c1"), beside)())
	expect.Same(t, "calls", s.Took(), []string{"ADD r c1/eth8"})
	expect.Same(t, "owners", owners(t, first), []string{"c1/eth0 first", "c1/eth8 second"})

	// A namespace that is gone belonged to both owners, with everything in it.
	s.RemoveNetNS("c1")
	expect.NoError(t, testhost.SetUp(t.Context(), second, "c1", s.Container("c1"), beside)())
	expect.Same(t, "calls", s.Took(), []string{"DEL r c1/eth8", "DEL p c1/eth0", "ADD r c1/eth8"})
	expect.Same(t, "owners", owners(t, first), []string{"c1/eth8 second"})
}

// TestFault_F41_AFailedSetupOfASecondOwnerLeavesTheRecordTheFirsts.
func TestFault_F41_AFailedSetupOfASecondOwnerLeavesTheRecordTheFirsts(t *testing.T) {
	s, first, second := twoOwners(t)
	s.On("r", "ADD", testhost.Says(11, "later"))
	err := testhost.SetUp(t.Context(), second, "c1", s.Path("netns", "c1"), cni.WithNetwork("more", cni.WithInterfaceName("eth9")))()
	expect.Same(t, "errors", testhost.Messages(err), []string{"r: later"})
	expect.Same(t, "owners", owners(t, first), []string{"c1/eth0 first", "c1/eth7 second"})
	s.TakeCalls()
	expect.NoError(t, second.Remove(t.Context(), "c1", "")) // the caller speaks for the whole container
	expect.Same(t, "calls", s.Took(), []string{"DEL r c1/eth7", "DEL p c1/eth0"})
	expect.Same(t, "owners", owners(t, first), []string{})
}

// TestFault_F41_ADamagedRecordOfTwoOwnersIsNotSwept: only the caller may
// remove the container.
func TestFault_F41_ADamagedRecordOfTwoOwnersIsNotSwept(t *testing.T) {
	s, first, second := twoOwners(t)
	s.SpoilBase("c1", "{")
	for _, r := range []*cni.Runtime{first, second} {
		report, err := r.Recover(t.Context())
		expect.NoError(t, err)
		expect.Same(t, "removed", report.Removed, nil)
		expect.Same(t, "skipped", len(report.Skipped), 1)
		collected := collectAll(t, r)
		expect.Same(t, "removed", collected.Removed, nil)
		expect.Same(t, "skipped", len(collected.Skipped), 1)
	}
	testhost.WantRecover(t, s.Runtime(cni.WithOwner("third")), cni.Report{})
	expect.Same(t, "calls", s.Took(), []string{})
	expect.NoError(t, first.Remove(t.Context(), "c1", ""))
	calls := s.Took()
	slices.Sort(calls)
	expect.Same(t, "calls", slices.Compact(calls), []string{"DEL p c1/eth0", "DEL r c1/eth1", "DEL r c1/eth7"})
	expect.Same(t, "owners", owners(t, first), []string{})
}

// TestFault_F52_AClockThatWasAheadDelaysNothing: the time of the failed removal
// is then unknown, so the removal is retried.
func TestFault_F52_AClockThatWasAheadDelaysNothing(t *testing.T) {
	s, _, conf := inhabited(t, "c1")
	s.ChangeRecord("c1", func(rec *record.Record) {
		n := rec.Find("eth0")
		n.Failures, n.LastError, n.LastTry = 12, "stuck", time.Now().AddDate(1, 0, 0)
	})
	s.On("p", "DEL", testhost.Says(5, "stuck again"))
	r := s.restarted(conf)
	report, err := r.Recover(t.Context())
	expect.NoError(t, err)
	expect.Same(t, "failed", testhost.Messages(report.Failed["c1"]), []string{"p: stuck again"})
	expect.Same(t, "calls", s.Took(), []string{"DEL q c1/eth0", "DEL p c1/eth0"})
	// From then on the delay counts from a time in the past.
	report, err = r.Recover(t.Context())
	expect.NoError(t, err)
	expect.Same(t, "calls", s.Took(), []string{})
	s.On("p", "DEL", scripted.Action{})
	if report.Failed["c1"] == nil {
		t.Error("tried again at once")
	}
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
}

// TestTheDefaultOwnerIsReportedBesideOthers: a program whose executable was renamed does
// not find its containers, and learns why. One that has chosen its owner shares the host
// on purpose.
func TestTheDefaultOwnerIsReportedBesideOthers(t *testing.T) {
	s, _, _ := twoOwners(t)
	var log bytes.Buffer
	logger := cni.WithLogger(slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})))
	warned := func() (lines []string) {
		t.Helper()
		for dec := json.NewDecoder(&log); dec.More(); {
			var line struct {
				Msg, Owner string
				Others     []string
			}
			expect.NoError(t, dec.Decode(&line))
			lines = append(lines, fmt.Sprintf("%s: %s beside %s", line.Msg, line.Owner, line.Others))
		}
		return lines
	}
	own := filepath.Base(os.Args[0])
	const text = "attachments of other owners are left alone; the owner is the name of the executable, unless WithOwner sets it"
	for _, tt := range []struct {
		name   string
		opts   []cni.Opt
		others []string
	}{
		{"by default", nil, []string{"first", "second"}},
		{"one of them", []cni.Opt{cni.WithOwner("second")}, nil},
		{"a third", []cni.Opt{cni.WithOwner("third")}, nil},
		{"the default, chosen", []cni.Opt{cni.WithOwner(own)}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := s.Runtime(append(tt.opts, logger)...)
			expect.NoError(t, r.Load(cni.WithConfListBytes(s.Network("net", "1.0.0", "p")))) // settings stay
			var want []string
			if tt.others != nil {
				want = []string{fmt.Sprintf("%s: %s beside %s", text, own, tt.others)}
			}
			report, err := r.Recover(t.Context())
			expect.NoError(t, err)
			expect.Same(t, "others of Recover", report.OtherOwners, tt.others)
			expect.Same(t, "warnings of Recover", withText(warned(), text), want)
			expect.Same(t, "in print", strings.Contains(report.String(), "first, second"), tt.others != nil)
			for _, dry := range []bool{true, false} {
				report, err := r.GC(t.Context(), cni.GCOptions{Keep: []string{"c1"}, DryRun: dry})
				expect.NoError(t, err)
				expect.Same(t, "others of GC", report.OtherOwners, tt.others)
				expect.Same(t, "warnings of GC", withText(warned(), text), want)
			}
		})
	}
	expect.Same(t, "owners", owners(t, s.Runtime()), []string{"c1/eth0 first", "c1/eth7 second"})

	alone := newStage(t)
	r := alone.Runtime(logger, cni.WithConfListBytes(alone.Network("net", "1.0.0", "p")))
	expect.NoError(t, testhost.SetUp(t.Context(), r, "c1", alone.Container("c1"))())
	log.Reset()
	report, err := r.Recover(t.Context())
	expect.NoError(t, err)
	expect.Same(t, "others, alone", report.OtherOwners, nil)
	expect.Same(t, "warnings, alone", withText(warned(), text), nil)
}

// withText returns the lines that begin with a text.
func withText(lines []string, text string) (found []string) {
	for _, line := range lines {
		if strings.HasPrefix(line, text) {
			found = append(found, line)
		}
	}
	return found
}

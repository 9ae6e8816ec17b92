package behaviour_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/store/record"
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
	testhost.MustSetUp(t, first, "c1", path, cni.WithNetwork("net"))
	s.AddLink("c1", "eth0")
	testhost.MustSetUp(t, second, "c1", path, cni.WithNetwork("more", cni.WithInterfaceName("eth7")))
	s.AddLink("c1", "eth7")
	s.TakeCalls()
	return s, first, second
}

func collectAll(t testing.TB, r *cni.Runtime) cni.Report {
	t.Helper()
	return *expect.Value(r.GC(t.Context(), cni.GCOptions{KeepNone: true}))(t)
}

// owners renders attachments with their owners: "c1/eth0 first".
func owners(t testing.TB, r *cni.Runtime) []string {
	t.Helper()
	all := expect.Value(r.Attachments())(t)
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
	expect.Same(t, "the owner that earlier versions see", expect.Value(s.Records().Load("c1"))(t).Owner, "first")
	wantRecover(t, first, adopted)
	expect.Same(t, "calls of the first", s.Took(), []string{"CHECK p c1/eth0"})
	wantRecover(t, second, adopted)
	expect.Same(t, "calls of the second", s.Took(), []string{"CHECK r c1/eth7"})
	wantRecover(t, s.Runtime(cni.WithOwner("third")), cni.Report{})

	expect.Same(t, "GC of the second", collectAll(t, second), removed)
	expect.Same(t, "calls of the second", s.Took(), []string{"DEL r c1/eth7"})
	expect.Same(t, "owners", owners(t, first), []string{"c1/eth0 first"})
	wantRecover(t, second, cni.Report{})
	wantRecover(t, first, adopted)
	expect.Same(t, "kept", s.Pinned("c1"), true)
}

// TestFault_F41_TheRestWhenTheFirstOwnerGoes belongs entirely to the second.
func TestFault_F41_TheRestWhenTheFirstOwnerGoes(t *testing.T) {
	s, first, second := twoOwners(t)
	expect.Same(t, "GC of the first", collectAll(t, first), removed)
	expect.Same(t, "calls", s.Took(), []string{"DEL p c1/eth0"})
	expect.Same(t, "owners", owners(t, second), []string{"c1/eth7 second"})
	wantRecover(t, first, cni.Report{})
	wantRecover(t, second, adopted)
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
			wantRecover(t, first, adopted)
			report := expect.Value(first.GC(t.Context(), cni.GCOptions{Keep: []string{"c1"}}))(t)
			expect.Same(t, "GC of the first", *report, adopted)
			expect.Same(t, "calls", s.Took(), []string{"CHECK p c1/eth0"})
			wantRecover(t, second, removed)
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
	testhost.MustSetUp(t, second, "c1", s.Path("netns", "c1"), beside)
	expect.Same(t, "calls", s.Took(), []string{"ADD r c1/eth8"})
	expect.Same(t, "owners", owners(t, first), []string{"c1/eth0 first", "c1/eth8 second"})

	// A namespace that is gone belonged to both owners, with everything in it.
	s.RemoveNetNS("c1")
	testhost.MustSetUp(t, second, "c1", s.Container("c1"), beside)
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
	spoilBase(s.Host, "c1", "{")
	for _, r := range []*cni.Runtime{first, second} {
		report := expect.Value(r.Recover(t.Context()))(t)
		expect.Same(t, "removed", report.Removed, nil)
		expect.Same(t, "skipped", len(report.Skipped), 1)
		collected := collectAll(t, r)
		expect.Same(t, "removed", collected.Removed, nil)
		expect.Same(t, "skipped", len(collected.Skipped), 1)
	}
	wantRecover(t, s.Runtime(cni.WithOwner("third")), cni.Report{})
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
	report := expect.Value(r.Recover(t.Context()))(t)
	expect.Same(t, "failed", testhost.Messages(report.Failed["c1"]), []string{"p: stuck again"})
	expect.Same(t, "calls", s.Took(), []string{"DEL q c1/eth0", "DEL p c1/eth0"})
	// From then on the delay counts from a time in the past.
	report = expect.Value(r.Recover(t.Context()))(t)
	expect.Same(t, "calls", s.Took(), []string{})
	s.On("p", "DEL", scripted.Action{})
	expect.Fails(t, "tried again at once", report.Failed["c1"])
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
}

// TestTheDefaultOwnerIsReportedBesideOthers: a program whose executable was renamed does
// not find its containers, and learns why. One that has chosen its owner shares the host
// on purpose.
func TestTheDefaultOwnerIsReportedBesideOthers(t *testing.T) {
	s, _, _ := twoOwners(t)
	own := filepath.Base(os.Args[0])
	const text = `msg="attachments of other owners are left alone; the owner is the name of the executable, unless WithOwner sets it"`
	warned := func(log *testhost.Log) []string {
		return slices.DeleteFunc(log.Lines("WARN"), func(line string) bool { return !strings.HasPrefix(line, text) })
	}
	for owner, others := range map[string][]string{"": {"first", "second"}, "second": nil, "third": nil, own: nil} {
		t.Run("owner "+owner, func(t *testing.T) {
			var log testhost.Log
			opts := []cni.Opt{log.Logger()}
			want := []string{}
			if owner != "" {
				opts = append(opts, cni.WithOwner(owner))
			} else {
				want = slices.Repeat([]string{fmt.Sprintf(`%s owner=%s others="[first second]"`, text, own)}, 3)
			}
			r := s.Runtime(opts...)
			expect.NoError(t, r.Load(cni.WithConfListBytes(s.Network("net", "1.0.0", "p")))) // settings stay
			report := expect.Value(r.Recover(t.Context()))(t)
			expect.Same(t, "others of Recover", report.OtherOwners, others)
			expect.Same(t, "in print", strings.Contains(report.String(), "first, second"), others != nil)
			for _, dry := range []bool{true, false} {
				report := expect.Value(r.GC(t.Context(), cni.GCOptions{Keep: []string{"c1"}, DryRun: dry}))(t)
				expect.Same(t, "others of GC", report.OtherOwners, others)
			}
			expect.Same(t, "warnings", warned(&log), want)
		})
	}
	expect.Same(t, "owners", owners(t, s.Runtime()), []string{"c1/eth0 first", "c1/eth7 second"})

	var log testhost.Log
	alone := newStage(t)
	r := alone.Runtime(log.Logger(), cni.WithConfListBytes(alone.Network("net", "1.0.0", "p")))
	testhost.MustSetUp(t, r, "c1", alone.Container("c1"))
	expect.Same(t, "others, alone", expect.Value(r.Recover(t.Context()))(t).OtherOwners, nil)
	expect.Same(t, "warnings, alone", warned(&log), []string{})
}

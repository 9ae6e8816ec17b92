package behaviour_test

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
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
)

// inhabited returns a stage with containers on one network of version 1.1.0.
func inhabited(t *testing.T, ids ...string) (s *stage, r *cni.Runtime, conf []byte) {
	t.Helper()
	s = newStage(t)
	conf = s.Network("net", "1.1.0", "p", "q")
	r = s.Runtime(cni.WithOwner("tester"), cni.WithConfListBytes(conf))
	for _, id := range ids {
		testhost.MustSetUp(t, r, id, s.Container(id))
		s.AddLink(id, "eth0")
	}
	s.TakeCalls()
	return s, r, conf
}

// valid returns the valid attachments of each GC call, in order.
func valid(t testing.TB, calls []scripted.Call) []string {
	t.Helper()
	var lists []string
	for _, c := range calls {
		if c.Verb != "GC" {
			continue
		}
		var given []types.GCAttachment
		expect.NoError(t, json.Unmarshal([]byte(testhost.Request(t, c)["cni.dev/valid-attachments"]), &given))
		names := []string{}
		for _, a := range given {
			names = append(names, a.ContainerID+"/"+a.IfName)
		}
		slices.Sort(names)
		lists = append(lists, strings.Join(names, " "))
	}
	return lists
}

func TestDuty_R21_R22_GCRemovesFirstAndListsValidAttachments(t *testing.T) {
	s, r, _ := inhabited(t, "c1", "c2", "c3")
	report := expect.Value(r.GC(t.Context(), cni.GCOptions{Keep: []string{"none", "c2", "c3"}}))(t) // "none" was never attached
	expect.Same(t, "report", *report, cni.Report{Adopted: []string{"c2", "c3"}, Removed: []string{"c1"}})
	calls := s.TakeCalls()
	expect.Same(t, "calls", testhost.Rendered(calls), []string{"DEL q c1/eth0", "DEL p c1/eth0", "GC p /", "GC q /"})
	expect.Same(t, "valid attachments", valid(t, calls), []string{"c2/eth0 c3/eth0", "c2/eth0 c3/eth0"})
}

func TestFault_F25_GCWithAnEmptyListIsRefused(t *testing.T) {
	s, r, _ := inhabited(t, "c1")
	expect.Is(t, errOf(r.GC(t.Context(), cni.GCOptions{})), cni.ErrInvalidArgument)
	expect.Same(t, "calls", s.Took(), []string{})
	report := expect.Value(r.GC(t.Context(), cni.GCOptions{KeepNone: true}))(t)
	expect.Same(t, "report", *report, cni.Report{Removed: []string{"c1"}})
	calls := s.TakeCalls()
	expect.Same(t, "calls", testhost.Rendered(calls), []string{"DEL q c1/eth0", "DEL p c1/eth0", "GC p /", "GC q /"})
	expect.Same(t, "valid attachments", valid(t, calls), []string{"", ""})
}

func TestFault_F25_GCTouchesOnlyItsOwnersContainers(t *testing.T) {
	s, r, conf := inhabited(t, "c1")
	other := s.Runtime(cni.WithOwner("other"), cni.WithConfListBytes(conf))
	expect.Same(t, "report", *expect.Value(other.GC(t.Context(), cni.GCOptions{KeepNone: true}))(t), cni.Report{})
	calls := s.TakeCalls()
	expect.Same(t, "calls", testhost.Rendered(calls), []string{"GC p /", "GC q /"})
	expect.Same(t, "valid attachments", valid(t, calls), []string{"c1/eth0", "c1/eth0"})
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c1/eth0 attached"})

	// An attachment that is only in libcni's cache belongs to another runtime.
	s.Unrecord("c1")
	expect.Value(r.GC(t.Context(), cni.GCOptions{KeepNone: true}))(t)
	calls = s.TakeCalls()
	expect.Same(t, "calls", testhost.Rendered(calls), []string{"GC p /", "GC q /"})
	expect.Same(t, "valid attachments", valid(t, calls), []string{"c1/eth0", "c1/eth0"})
}

func TestDuty_R7_DisableGCAndNetworksWithoutGC(t *testing.T) {
	s := newStage(t)
	script := s.Plugin(scripted.Script{}, "p")
	r := s.Runtime(cni.WithConfListBytes(s.Network("old", "1.0.0", "q")), cni.WithConfListBytes(fmt.Appendf(nil,
		`{"cniVersion": "1.1.0", "name": "net", "disableGC": true, "plugins": [{"type": "p", "script": %q}]}`, script)))
	testhost.MustSetUp(t, r, "c1", s.Container("c1"), cni.WithNetwork("net"))
	s.TakeCalls()
	expect.Value(r.GC(t.Context(), cni.GCOptions{KeepNone: true}))(t)
	expect.Same(t, "calls", s.Took(), []string{"DEL p c1/eth1"})
}

func TestDuty_R35_GCAsksAllAndReturnsAllErrors(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(cni.WithConfListBytes(s.Network("one", "1.1.0", "p", "q")), cni.WithConfListBytes(s.Network("two", "1.1.0", "r")))
	s.On("p", "GC", testhost.Says(5, "no"))
	s.On("r", "GC", testhost.Says(6, "neither"))
	testhost.MustSetUp(t, r, "c1", s.Container("c1"))
	s.On("p", "DEL", testhost.Says(7, "stuck"))
	s.TakeCalls()
	report, err := r.GC(t.Context(), cni.GCOptions{KeepNone: true})
	expect.Same(t, "errors", testhost.Messages(err), []string{"p: no", "r: neither"})
	expect.Same(t, "failed", testhost.Messages(report.Failed["c1"]), []string{"p: stuck"})
	expect.Same(t, "failures", testhost.Messages(report.Err()), []string{"p: stuck"})
	calls := s.TakeCalls()
	expect.Same(t, "calls", testhost.Rendered(calls), []string{"DEL r c1/eth1", "DEL q c1/eth0", "DEL p c1/eth0", "GC p /", "GC q /", "GC r /"})
	expect.Same(t, "valid attachments", valid(t, calls), []string{"c1/eth0", "c1/eth0", "c1/eth1"})
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c1/eth0 failed", "c1/eth1 detaching"})
}

// TestDuty_R35_GCReportsUnreadableRecords: while a record cannot be read, no
// plugin gets an incomplete list of valid attachments.
func TestDuty_R35_GCReportsUnreadableRecords(t *testing.T) {
	s, r, _ := inhabited(t, "c1", "c2")
	expect.NoError(t, os.WriteFile(s.RecordFile("c1")+".json", []byte("{"), 0o600))
	_, err := r.GC(t.Context(), cni.GCOptions{Keep: []string{"c1", "c2"}})
	fails(t, err, "the list of attachments is incomplete")
	expect.Same(t, "calls", s.Took(), []string{})
}

// TestGCKeepsTheAttachmentsOfADamagedRecord: the log names the interfaces but
// not the networks, so the interfaces are valid on each network.
func TestGCKeepsTheAttachmentsOfADamagedRecord(t *testing.T) {
	s, r, _ := inhabited(t, "c1", "c2")
	expect.NoError(t, os.RemoveAll(s.Path("state", "results")))
	spoilBase(s.Host, "c1", "{")
	expect.Value(r.GC(t.Context(), cni.GCOptions{Keep: []string{"c1", "c2"}}))(t)
	expect.Same(t, "valid attachments", valid(t, s.TakeCalls()), []string{"c1/eth0 c2/eth0", "c1/eth0 c2/eth0"})
}

func TestGCDryRunRemovesNothing(t *testing.T) {
	s, r, _ := inhabited(t, "c1", "c2")
	report := expect.Value(r.GC(t.Context(), cni.GCOptions{Keep: []string{"c2"}, DryRun: true}))(t)
	expect.Same(t, "report", *report, cni.Report{Removed: []string{"c1"}})
	expect.Same(t, "calls", s.Took(), []string{})
	expect.Same(t, "on record", len(testhost.Recorded(t, r)), 2)
}

func TestDuty_R25_GCWaitsForADDAndDELAndTheyForIt(t *testing.T) {
	s, r, conf := inhabited(t, "c1")
	s.LogEnds("p", "q")
	add, del, gc := s.Gate("add"), s.Gate("del"), s.Gate("gc")
	s.On("p", "ADD", scripted.Action{Block: add})
	s.On("p", "DEL", scripted.Action{Block: del})
	s.On("p", "GC", scripted.Action{Block: gc})
	collect := func() error { return errOf(r.GC(t.Context(), cni.GCOptions{Keep: []string{"c1", "c2"}})) }

	adding := s.Elsewhere(conf, "ADD", "c2", s.Container("c2"))
	added := s.Arrive(add)
	removing := testhost.Begin(func() error { return r.Remove(t.Context(), "c1", "") })
	removed := s.Arrive(del)
	short, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errors.New("impatient"))
	defer cancel()
	expect.Is(t, errOf(r.GC(short, cni.GCOptions{KeepNone: true})), context.DeadlineExceeded)
	collecting := testhost.Begin(collect)
	added()
	removed()
	expect.Same(t, "the other process", expect.Await(t, "ADD", adding), "")
	expect.NoError(t, expect.Await(t, "Remove", removing))
	letGo := s.Arrive(gc)
	expect.Same(t, "GC came last", lastOf(s.Took()), "GC p /")

	// ADD and DEL wait for it, here and in another process.
	s.On("p", "ADD", scripted.Action{})
	s.On("p", "DEL", scripted.Action{})
	adding = s.Elsewhere(conf, "ADD", "c3", s.Container("c3"))
	removing = testhost.Begin(func() error { return r.Remove(t.Context(), "c2", "") })
	short, cancel = context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errors.New("impatient"))
	defer cancel()
	expect.Is(t, testhost.SetUp(short, r, "c4", s.Container("c4"))(), context.DeadlineExceeded)
	expect.Same(t, "calls beside GC", s.Took(), []string{})
	letGo()
	expect.NoError(t, expect.Await(t, "GC", collecting))
	expect.Same(t, "the other process", expect.Await(t, "ADD", adding), "")
	expect.NoError(t, expect.Await(t, "Remove", removing))
	expect.Same(t, "the first calls", s.Took()[:3], []string{"end of GC p /", "GC q /", "end of GC q /"})
}

func lastOf(lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	return lines[len(lines)-1]
}

func TestDuty_R25_GCAndRemovalsOfTheSameContainersDoNotBlockEachOther(t *testing.T) {
	ids := []string{"c1", "c2", "c3", "c4", "c5", "c6"} // their locks are on both sides of GC's
	s, r, _ := inhabited(t, ids...)
	all, err := r.Attachments() // in GC's order
	expect.NoError(t, err)
	var report *cni.Report
	collecting, letGo := s.heldUp("q", "DEL", func() (err error) { report, err = r.GC(t.Context(), cni.GCOptions{KeepNone: true}); return err })
	s.On("q", "DEL", scripted.Action{})
	var removing []<-chan error
	for _, a := range all[1:] {
		removing = append(removing, testhost.Begin(func() error { return r.Remove(t.Context(), a.ContainerID, "") }))
	}
	expect.Same(t, "removals that wait", s.blocked("internal/store/lock.(*queue).acquire", len(removing)), len(removing))
	letGo()
	expect.NoError(t, expect.Await(t, "GC", collecting))
	slices.Sort(report.Removed)
	expect.Same(t, "report", *report, cni.Report{Removed: ids})
	for _, done := range removing {
		expect.NoError(t, expect.Await(t, "Remove", done))
	}
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{})
}

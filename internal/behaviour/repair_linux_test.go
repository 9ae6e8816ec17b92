package behaviour_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
)

// repaired is the report on a container.
func (s *stage) repaired(r *cni.Runtime, id string) *cni.RepairReport {
	s.T.Helper()
	report := expect.Value(r.Repair(s.T.Context(), id, cni.RepairOptions{}))(s.T)
	return report
}

// TestRepairOfOtherPluginsOnlyAsks them for CHECK: the specification forbids a second
// ADD. What they say is wrong is reported, with what to do.
func TestRepairOfOtherPluginsOnlyAsks(t *testing.T) {
	s, r, _ := inhabited(t, "c1")
	expect.NoError(t, s.repaired(r, "c1").Err())
	expect.Same(t, "calls", s.Took(), []string{"CHECK p c1/eth0", "CHECK q c1/eth0"})

	s.On("q", "CHECK", testhost.Says(100, "its part is gone"))
	report := s.repaired(r, "c1")
	expect.Is(t, report.Err(), cni.ErrNotRepairable)
	expect.Same(t, "messages", testhost.Messages(report.Err()), []string{"q: its part is gone"})
	expect.Same(t, "error", *testhost.AsError(t, report.Err()), cni.Error{
		Op: "CHECK", Network: "net", Plugin: "q", PluginKind: "executable", ContainerID: "c1", IfName: "eth0",
		Code: 100, Msg: "its part is gone", Err: testhost.AsError(t, report.Err()).Err,
	})
	expect.Same(t, "repaired and remaining", len(report.Repaired)+len(report.Remaining), 0)
	expect.Same(t, "calls", s.Took(), []string{"CHECK p c1/eth0", "CHECK q c1/eth0"})
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
}

// TestRepairOfAConfigurationWithoutCheckSaysSo.
func TestRepairOfAConfigurationWithoutCheckSaysSo(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(cni.WithConfListBytes(s.Network("net", "0.3.1", "p")))
	testhost.MustSetUp(t, r, "c1", s.Container("c1"))
	s.AddLink("c1", "eth0")
	s.TakeCalls()
	expect.Is(t, s.repaired(r, "c1").Err(), libcni.ErrorCheckNotSupp)
	expect.Same(t, "calls", s.Took(), []string{})
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
}

// TestRepairRefuses containers that nothing may be added to.
func TestRepairRefuses(t *testing.T) {
	for what, test := range map[string]struct {
		do   func(s *stage, r *cni.Runtime)
		want []error
	}{
		"its namespace is gone":    {func(s *stage, _ *cni.Runtime) { s.RemoveNetNS("c1"); s.Unpin() }, []error{cni.ErrNotRepairable}},
		"its path leads nowhere":   {func(s *stage, _ *cni.Runtime) { s.RemoveNetNS("c1") }, []error{cni.ErrNotRepairable, cni.ErrInvalidNetNS}},
		"its path leads to others": {func(s *stage, _ *cni.Runtime) { s.RemoveNetNS("c1"); s.Container("c1") }, []error{cni.ErrNotRepairable, cni.ErrInvalidNetNS}},
		"its record is damaged":    {func(s *stage, _ *cni.Runtime) { s.SpoilBase("c1", "{") }, []error{cni.ErrNotRepairable}},
		"it is removed":            {func(s *stage, r *cni.Runtime) { expect.NoError(s.T, r.Remove(s.T.Context(), "c1", "")) }, []error{cni.ErrNotAttached}},
	} {
		t.Run(what, func(t *testing.T) {
			s, r, _ := inhabited(t, "c1")
			test.do(s, r)
			s.TakeCalls()
			report, err := r.Repair(t.Context(), "c1", cni.RepairOptions{Inside: true})
			expect.Is(t, err, test.want...)
			if report != nil {
				t.Errorf("report %v", report)
			}
			expect.Same(t, "calls", s.Took(), []string{})
			expect.NoError(t, r.Remove(t.Context(), "c1", ""))
		})
	}
	s := newStage(t)
	for id, want := range map[string]error{"c1": cni.ErrNotAttached, "": cni.ErrInvalidArgument, "../x": cni.ErrInvalidArgument} {
		if _, err := s.Runtime().Repair(t.Context(), id, cni.RepairOptions{}); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", id, err, want)
		}
	}
}

// TestRepairLeavesAnAttachmentThatIsBeingRemoved: its removal failed, and the next one
// would remove it again. The container's other attachment is repaired.
func TestRepairLeavesAnAttachmentThatIsBeingRemoved(t *testing.T) {
	s := newStage(t)
	s.On("p", "DEL", testhost.Says(100, "not now"))
	r := s.Runtime(cni.WithConfListBytes(s.Network("net", "1.0.0", "p")), cni.WithConfListBytes(s.Network("two", "1.0.0", "q")))
	testhost.MustSetUp(t, r, "c1", s.Container("c1"))
	s.AddLink("c1", "eth0")
	s.AddLink("c1", "eth1")
	if err := r.Remove(t.Context(), "c1", "", testhost.OnNet); err == nil {
		t.Fatal("Remove has not failed")
	}
	s.TakeCalls()
	report := s.repaired(r, "c1")
	expect.Is(t, report.Err(), cni.ErrNotRepairable)
	e := testhost.AsError(t, report.Err())
	expect.Same(t, "about", fmt.Sprint(e.Op, " ", e.Network, " ", e.IfName, " ", len(report.Unknown)), "REPAIR net eth0 1")
	expect.Same(t, "calls", s.Took(), []string{"CHECK q c1/eth1"})
	s.On("p", "DEL", scripted.Action{})
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
}

// TestRepairWaitsForOtherCalls for the container and for GC, as long as its context
// allows.
func TestRepairWaitsForOtherCalls(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(cni.WithConfListBytes(s.Network("net", "1.0.0", "p")))
	done, letGo := s.heldUp("p", "ADD", testhost.SetUp(t.Context(), r, "c1", s.Container("c1")))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := r.Repair(ctx, "c1", cni.RepairOptions{})
	expect.Is(t, err, context.DeadlineExceeded)
	repairing := testhost.Begin(func() error {
		_, err := r.Repair(t.Context(), "c1", cni.RepairOptions{})
		return err
	})
	letGo()
	expect.NoError(t, expect.Await(t, "Setup", done))
	s.AddLink("c1", "eth0")
	expect.NoError(t, expect.Await(t, "Repair", repairing))
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
}

// TestRepairIsReported to the log and to the observer, with what was missing.
func TestRepairIsReported(t *testing.T) {
	h := newRealHost(t)
	var log bytes.Buffer
	var events []cni.Event
	c := testhost.Case{Plugins: []string{testhost.BridgeConf(`"ipMasq": true, "ipMasqBackend": "nftables", ` + testhost.HostLocal(testhost.V4Range))}}
	r := h.Runtime(cni.WithBuiltinPlugins(), cni.WithConfListBytes(c.Conf("podnet", "1.0.0", h.Path("ipam"))),
		cni.WithLogger(slog.New(slog.NewTextHandler(&log, nil))),
		cni.WithObserver(func(_ context.Context, e cni.Event) { events = append(events, e) }))
	before := h.Audit()
	h.attach(r, "c1")
	h.sh("nft flush ruleset")
	log.Reset()
	events = nil
	report, err := r.Repair(t.Context(), "c1", cni.RepairOptions{})
	expect.NoError(t, err, report.Err())
	if len(report.Repaired) != 1 || report.Repaired[0].Kind != "rule" || report.Repaired[0].Plugin != "bridge" {
		t.Errorf("report %v", report)
	}
	for i := range events {
		events[i].Duration = 0
	}
	expect.Same(t, "events", events, []cni.Event{{
		Operation: "REPAIR", Network: "podnet", Plugin: "bridge", PluginKind: "built in", ContainerID: "c1", IfName: "eth0",
	}})
	if line := log.String(); !strings.Contains(line, "level=INFO msg=repaired container=c1 network=podnet interface=eth0 plugin=bridge kind=rule") {
		t.Errorf("log:\n%s", line)
	}
	log.Reset()
	expect.NoError(t, h.repairedAgain(r, "c1"))
	expect.Same(t, "log", log.String(), "")
	h.detach(r, "c1")
	h.WantClean(before)
}

// repairedAgain returns an error unless there is nothing to repair.
func (h *realHost) repairedAgain(r *cni.Runtime, id string) error {
	report, err := r.Repair(h.T.Context(), id, cni.RepairOptions{})
	if err == nil && len(report.Repaired)+len(report.Remaining)+len(report.Unknown) > 0 {
		err = fmt.Errorf("there was something to repair: %v", report)
	}
	return err
}

package behaviour_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/guard"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// healthOf returns the verdict on c1.
func healthOf(t *testing.T, r *cni.Runtime, o cni.HealthOptions) (cni.Health, []cni.Health) {
	t.Helper()
	report := expect.Value(r.Health(t.Context(), o))(t)
	h, ok := testhost.VerdictOn(report, "c1")
	if !ok {
		t.Fatalf("no verdict on c1 in %v", report)
	}
	return h, report
}

// TestFault_F35_HealthSaysWhyAndRecoverKeepsLivingContainers: a plugin that has no answer does
// not make a container broken. Whatever CHECK reports, a recorded attachment stays while its
// namespace lives.
func TestFault_F35_HealthSaysWhyAndRecoverKeepsLivingContainers(t *testing.T) {
	quick := []cni.Opt{cni.WithTimeouts(cni.Timeouts{Check: 200 * time.Millisecond})}
	for what, tt := range map[string]struct {
		happens func(s *stage)
		opts    []cni.Opt
		state   cni.HealthState
		is      error
		text    string
		kept    bool // by Recover, for the same reason
	}{
		"nothing":                    {happens: func(*stage) {}, state: cni.StateHealthy},
		"CHECK fails":                {happens: func(s *stage) { s.On("q", "CHECK", testhost.Says(5, "no")) }, state: cni.StateBroken, text: "failed (check): no (code 5)", kept: true},
		"CHECK times out":            {happens: func(s *stage) { s.On("p", "CHECK", scripted.Action{Hang: true}) }, opts: quick, state: cni.StateUnknown, is: context.DeadlineExceeded, kept: true},
		"the plugin is killed":       {happens: func(s *stage) { s.On("p", "CHECK", scripted.Action{Signal: 9}) }, state: cni.StateUnknown, is: cni.ErrPluginKilled, kept: true},
		"CHECK has no answer":        {happens: func(s *stage) { s.On("p", "CHECK", scripted.Action{Exit: 1}) }, state: cni.StateUnknown, is: cni.ErrNoAnswer, kept: true},
		"code 11":                    {happens: func(s *stage) { s.On("p", "CHECK", testhost.Says(11, "later")) }, state: cni.StateUnknown, is: cni.ErrPluginNotReady, kept: true},
		"code 50":                    {happens: func(s *stage) { s.On("p", "CHECK", testhost.Says(50, "not yet")) }, state: cni.StateUnknown, is: cni.ErrPluginNotReady, kept: true},
		"the plugin is gone":         {happens: func(s *stage) { expect.NoError(s.T, os.Remove(s.Path("bin", "p"))) }, state: cni.StateUnknown, is: cni.ErrPluginNotFound, kept: true},
		"the plugin is not safe":     {happens: func(s *stage) { s.replacePlugin("p", "#!/bin/sh\n", 0o777) }, state: cni.StateUnknown, is: cni.ErrInsecureFile, kept: true},
		"the interpreter is gone":    {happens: func(s *stage) { s.replacePlugin("p", "#!/no/such\n", 0o755) }, state: cni.StateUnknown, is: cni.ErrNoAnswer, kept: true},
		"the interface is gone":      {happens: func(s *stage) { s.DelLink("c1", "eth0") }, state: cni.StateBroken, is: cni.ErrNotAttached, kept: true},
		"its path is gone":           {happens: func(s *stage) { s.RemoveNetNS("c1") }, state: cni.StateUnknown, is: cni.ErrInvalidNetNS, kept: true},
		"the record is damaged":      {happens: func(s *stage) { spoilBase(s.Host, "c1", "{") }, state: cni.StateUnknown, is: record.ErrBad, kept: true},
		"another boot":               {happens: inAnotherBoot, state: cni.StateGone, text: "before the machine was rebooted"},
		"its namespace is gone":      {happens: func(s *stage) { s.RemoveNetNS("c1"); expect.NoError(s.T, netns.Remove(s.Pin("c1"))) }, state: cni.StateGone},
		"a Setup is in progress":     {happens: left(record.Planned, false), state: cni.StateUnknown, is: cni.ErrBusy},
		"a Remove is in progress":    {happens: left(record.Deleting, false), state: cni.StateUnknown, is: cni.ErrBusy},
		"a Setup was cut short":      {happens: left(record.Planned, true), state: cni.StateUnknown, text: "was cut short"},
		"a Remove was cut short":     {happens: left(record.Deleting, true), state: cni.StateUnknown, text: "was cut short"},
		"its record is gone as well": {happens: func(s *stage) { s.Unrecord("c1") }, state: cni.StateUnknown, text: "libcni's cache"},
	} {
		t.Run(what, func(t *testing.T) {
			s, first, conf := inhabited(t, "c1")
			defer runtime.KeepAlive(first) // a Runtime lives until it is garbage
			tt.happens(s)
			var log testhost.Log
			r := s.restarted(conf, append(tt.opts, log.Logger())...)
			before := s.Audit()
			h, report := healthOf(t, r, cni.HealthOptions{Containers: []string{"c1"}})
			t.Log(report)
			added, removed := audit.Diff(before, s.Audit())
			expect.Unchanged(t, "host", added, removed)
			expect.Same(t, "state", h.State, tt.state)
			expect.Same(t, "differences", len(h.Differences) > 0, tt.state == cni.StateBroken)
			expect.Same(t, "an error", h.Err() != nil, tt.state != cni.StateHealthy)
			if tt.is != nil {
				expect.Is(t, h.Err(), tt.is)
			}
			expect.That(t, tt.state == cni.StateHealthy || strings.Contains(h.Err().Error(), tt.text), "got %v, want %q", h.Err(), tt.text)
			wantEncoded(t, h)
			if tt.kept {
				s.wantKept(r, &log, tt.is, tt.text)
			}
		})
	}
}

// wantKept: Recover adopts c1 and says why it is not known to be healthy. The caller has to
// end it.
func (s *stage) wantKept(r *cni.Runtime, log *testhost.Log, is error, text string) {
	t, before := s.T, s.Pinned("c1")
	t.Helper()
	report := expect.Value(r.Recover(t.Context()))(t)
	why := report.Kept["c1"]
	fails(t, why, text)
	if is != nil {
		expect.Is(t, why, is)
	}
	expect.Same(t, "report", *report, cni.Report{Adopted: []string{"c1"}, Kept: map[string]error{"c1": why}})
	expect.Same(t, "failures", report.Err(), nil)
	expect.Same(t, "DELs of a container that lives", strings.Contains(strings.Join(s.Took(), ""), "DEL"), false)
	expect.Same(t, "the namespace is kept", s.Pinned("c1"), before)
	expect.Same(t, "a warning", strings.Contains(strings.Join(log.Lines("WARN"), ""), "c1"), true)
	if err := os.Remove(s.Path("bin", "p")); !errors.Is(err, fs.ErrNotExist) {
		expect.NoError(t, err)
	}
	s.On("p", "DEL", scripted.Action{})
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{})
}

// wantEncoded: errors are their texts.
func wantEncoded(t *testing.T, h cni.Health) {
	t.Helper()
	data := expect.Value(json.Marshal(h))(t)
	var got struct {
		State, Reason string
		Differences   []struct{ Kind, Err string }
	}
	expect.NoError(t, json.Unmarshal(data, &got))
	reason := ""
	if h.Reason != nil {
		reason = h.Reason.Error()
	}
	expect.Same(t, "encoded", []string{got.State, got.Reason}, []string{string(h.State), reason})
	for i, d := range h.Differences {
		expect.Same(t, "encoded difference", [2]string{got.Differences[i].Kind, got.Differences[i].Err}, [2]string{string(d.Kind), d.Err.Error()})
	}
}

func inAnotherBoot(s *stage) {
	s.ChangeRecord("c1", func(rec *record.Record) { rec.Boot = "another" })
}

// left returns a function that leaves the attachment in a state, with this process or a
// dead one at work on it.
func left(state record.State, dead bool) func(*stage) {
	return func(s *stage) {
		s.ChangeRecord("c1", func(rec *record.Record) {
			rec.Attachments[0].State = state
			if dead {
				rec.Life, rec.Runtime = "", "4194305:1"
			}
		})
	}
}

// TestHealthAsksForChecks of all containers, and lists them in the order of their IDs.
func TestHealthAsksForChecks(t *testing.T) {
	s, _, conf := inhabited(t, "c1", "c2")
	r := s.restarted(conf)
	all := expect.Value(r.Health(t.Context(), cni.HealthOptions{}))(t)
	expect.Same(t, "healthy", testhost.Healthy(all), 2)
	expect.Same(t, "calls", len(s.Took()), 4)

	s.On("q", "CHECK", testhost.Says(5, "no"))
	s.On("p", "CHECK", scripted.Action{})
	all = expect.Value(r.Health(t.Context(), cni.HealthOptions{Containers: []string{"c2", "c1", "c2"}}))(t)
	expect.Same(t, "one fails", []any{all[0].ContainerID, all[0].State, all[1].ContainerID, all[1].State, len(all)},
		[]any{"c1", cni.StateBroken, "c2", cni.StateBroken, 2})

	s.On("p", "CHECK", scripted.Action{Signal: 9})
	all = expect.Value(r.Health(t.Context(), cni.HealthOptions{}))(t)
	expect.Same(t, "one is killed", []cni.HealthState{all[0].State, all[1].State}, []cni.HealthState{cni.StateUnknown, cni.StateUnknown})
}

// TestHealthWithoutCheck: parts of other programs' plugins are listed as not compared, if
// nobody wants to hear from them.
func TestHealthWithoutCheck(t *testing.T) {
	want := cni.Health{ContainerID: "c1", State: cni.StateHealthy, Uncompared: []string{"p", "q"}}
	s, _, conf := inhabited(t, "c1")
	h, _ := healthOf(t, s.restarted(conf), cni.HealthOptions{WithoutCheck: true})
	expect.Same(t, "verdict", h, want)
	expect.Same(t, "calls", s.Took(), []string{})

	s = newStage(t) // or the administrator forbids to ask them
	conf = []byte(strings.Replace(string(s.Network("net", "1.1.0", "p", "q")), "{", `{"disableCheck": true, `, 1))
	r := s.restarted(conf)
	testhost.MustSetUp(t, r, "c1", s.Container("c1"))
	s.AddLink("c1", "eth0")
	s.TakeCalls()
	h, _ = healthOf(t, r, cni.HealthOptions{})
	expect.Same(t, "verdict with disableCheck", h, want)
	expect.Same(t, "calls", s.Took(), []string{})
}

// TestHealthBeforeCheckWasIntroduced: nobody can tell about another program's plugin.
func TestHealthBeforeCheckWasIntroduced(t *testing.T) {
	s := newStage(t)
	r := s.restarted(s.Network("net", "0.3.1", "p"))
	testhost.MustSetUp(t, r, "c1", s.Container("c1"))
	s.AddLink("c1", "eth0")
	h, _ := healthOf(t, r, cni.HealthOptions{})
	expect.Same(t, "state", h.State, cni.StateUnknown)
	expect.Is(t, h.Reason, cni.ErrNoCheck)
	s.DelLink("c1", "eth0")
	h, _ = healthOf(t, r, cni.HealthOptions{})
	expect.Same(t, "state without the interface", h.State, cni.StateBroken)
}

// TestHealthStopsAskingAfterItsBudget: a plugin that hangs holds up nobody for longer.
func TestHealthStopsAskingAfterItsBudget(t *testing.T) {
	s, _, conf := inhabited(t, "c1", "c2")
	s.On("p", "CHECK", scripted.Action{Hang: true})
	begun := time.Now()
	h, _ := healthOf(t, s.restarted(conf), cni.HealthOptions{CheckBudget: 300 * time.Millisecond})
	expect.Within(t, "Health", time.Since(begun), expect.Patience)
	expect.Same(t, "state", h.State, cni.StateUnknown)
	expect.Is(t, h.Reason, context.DeadlineExceeded)
}

// TestHealthDuringARemove does not take the work of the other call for damage.
func TestHealthDuringARemove(t *testing.T) {
	s, _, conf := inhabited(t, "c1")
	r := s.restarted(conf)
	done, letGo := s.heldUp("q", "DEL", func() error { return r.Remove(t.Context(), "c1", "") })
	s.DelLink("c1", "eth0") // as the plugins do
	h, _ := healthOf(t, s.restarted(conf), cni.HealthOptions{Containers: []string{"c1"}})
	expect.Same(t, "state", h.State, cni.StateUnknown)
	expect.Is(t, h.Reason, cni.ErrBusy)
	letGo()
	expect.NoError(t, expect.Await(t, "Remove", done))
	h, _ = healthOf(t, r, cni.HealthOptions{Containers: []string{"c1"}})
	expect.Same(t, "afterwards", h, cni.Health{ContainerID: "c1", State: cni.StateNotAttached})
	expect.Is(t, h.Err(), cni.ErrNotAttached)
}

// TestHealthRefusesAnIDThatIsNone before it looks at anything.
func TestHealthRefusesAnIDThatIsNone(t *testing.T) {
	s, _, conf := inhabited(t, "c1")
	expect.Is(t, errOf(s.restarted(conf).Health(t.Context(), cni.HealthOptions{Containers: []string{"c1", "../c1"}})), cni.ErrInvalidArgument)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	expect.Is(t, errOf(s.restarted(conf).Health(ctx, cni.HealthOptions{})), context.Canceled)
}

// TestHealthOfOthers: without IDs only this owner's attachments are looked at.
func TestHealthOfOthers(t *testing.T) {
	s, _, conf := inhabited(t, "c1")
	other := s.restarted(conf, cni.WithOwner("other"))
	report := expect.Value(other.Health(t.Context(), cni.HealthOptions{}))(t)
	expect.Same(t, "containers", len(report), 0)
	h, _ := healthOf(t, other, cni.HealthOptions{Containers: []string{"c1"}})
	expect.Same(t, "by its ID", h.State, cni.StateHealthy)
}

// attachedBridge attaches c1 to a bridge, by the built-in plugins or by executables, and
// returns the host's end of its interface.
func attachedBridge(t *testing.T, executables bool, version string) (h *realHost, r *cni.Runtime, port string) {
	t.Helper()
	h = newRealHost(t)
	dirs := []string(nil)
	if executables {
		dirs = []string{testhost.ReferencePlugins(t)}
	}
	list := fmt.Appendf(nil, `{"cniVersion": %q, "name": "net", "plugins": [
		{"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "ipMasq": true,
		 "ipam": {"type": "host-local", "dataDir": %q, "subnet": "10.77.0.0/24"}}]}`, version, h.Path("ipam"))
	r = h.Runtime(cni.WithPluginDir(dirs), cni.WithConfListBytes(list))
	result := testhost.MustSetUp(t, r, "c1", h.Container("c1"))
	t.Cleanup(func() { expect.NoError(t, r.Remove(t.Context(), "c1", "")) })
	for name, i := range result.Interfaces {
		if i.Sandbox == "" && name != "cni0" {
			port = name
		}
	}
	return h, r, port
}

// TestRecoverAndBrokenContainers: repaired, unless they are held.
func TestRecoverAndBrokenContainers(t *testing.T) {
	for what, tt := range map[string]struct {
		held, kept, repaired bool
		after                cni.HealthState
	}{
		"repaired": {false, false, true, cni.StateHealthy},
		"held":     {true, true, false, cni.StateBroken},
	} {
		t.Run(what, func(t *testing.T) {
			host, r, port := attachedBridge(t, false, "1.0.0")
			if tt.held {
				expect.NoError(t, guard.Hold{Network: "net"}.Begin(t.Context(), r))
			}
			host.Change("", port, (*netlink.Handle).LinkSetNoMaster)
			report := expect.Value(r.Recover(t.Context()))(t)
			t.Log(report)
			expect.Same(t, "adopted", report.Adopted, []string{"c1"})
			expect.Same(t, "kept", report.Kept["c1"] != nil, tt.kept)
			expect.Same(t, "repaired", len(report.Repaired["c1"]) > 0, tt.repaired)
			h, _ := healthOf(t, r, cni.HealthOptions{Containers: []string{"c1"}})
			expect.Same(t, "afterwards", h.State, tt.after)
		})
	}
}

// TestRecoverRemovesNoContainerForACheck: a failing CHECK or a missing part does not end a
// living container.
func TestRecoverRemovesNoContainerForACheck(t *testing.T) {
	s, _, conf := inhabited(t, "c1")
	s.On("p", "CHECK", testhost.Says(5, "no"))
	for _, happens := range []func(){func() {}, func() { s.DelLink("c1", "eth0") }} {
		happens()
		report := expect.Value(s.restarted(conf).Recover(t.Context()))(t)
		expect.Same(t, "report", *report, cni.Report{Adopted: []string{"c1"}, Kept: report.Kept})
		expect.Same(t, "kept", report.Kept["c1"] != nil, true)
	}
}

// TestRecoverKeepsContainersOfAHostThatDoesNotForward.
func TestRecoverKeepsContainersOfAHostThatDoesNotForward(t *testing.T) {
	host, r, _ := attachedBridge(t, false, "1.0.0")
	expect.NoError(t, os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"), 0))
	h, _ := healthOf(t, r, cni.HealthOptions{})
	expect.Same(t, "state", h.State, cni.StateBroken)
	expect.Same(t, "differences", len(h.Differences), 1)
	expect.Same(t, "kind", h.Differences[0].Kind, "sysctl")
	report := expect.Value(r.Recover(t.Context()))(t)
	expect.Same(t, "adopted", len(report.Adopted), 1)
	expect.Same(t, "kept", report.Kept["c1"] != nil, true)
	expect.NoError(t, r.Check(t.Context(), "c1", host.Path("netns", "c1")))
}

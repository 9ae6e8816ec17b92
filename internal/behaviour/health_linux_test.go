package behaviour_test

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// healthOf returns the verdict on c1.
func healthOf(t *testing.T, r *cni.Runtime, o cni.HealthOptions) (cni.Health, *cni.HealthReport) {
	t.Helper()
	report := expect.Value(r.Health(t.Context(), o))(t)
	h, ok := report.Of("c1")
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
		"the record is damaged":      {happens: func(s *stage) { s.SpoilBase("c1", "{") }, state: cni.StateUnknown, is: record.ErrBad, kept: true},
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
			added, removed := s.Since(before)
			expect.Unchanged(t, "host", added, removed)
			expect.Same(t, "state", h.State, tt.state)
			expect.Same(t, "differences", len(h.Differences) > 0, tt.state == cni.StateBroken)
			expect.Same(t, "an error", h.Err() != nil, tt.state != cni.StateHealthy)
			if tt.is != nil {
				expect.Is(t, h.Err(), tt.is)
			}
			if tt.state != cni.StateHealthy && !strings.Contains(h.Err().Error(), tt.text) {
				t.Errorf("got %v, want %q", h.Err(), tt.text)
			}
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
	says(t, why, text)
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

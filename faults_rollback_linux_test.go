package cni_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/scripted"
)

func TestFault_F4_ADELErrorIsNotJudgedByItsText(t *testing.T) {
	for _, text := range []string{"iptables: executable file not found in $PATH", "not found", "no such file or directory",
		"unknown FS magic on \"/run/netns/x\": 1021994", "already deleted"} {
		s := newStage(t)
		r := s.runtime(cni.WithConfListBytes(s.network("net", "1.0.0", "p")))
		path := s.container("c1")
		_, err := r.Setup(t.Context(), "c1", path)
		wantNil(t, err)
		s.on("p", "DEL", says(999, text))
		wantSame(t, text, messages(r.Remove(t.Context(), "c1", path)), []string{"p: " + text})
		wantNil(t, r.Check(t.Context(), "c1", path)) // still on record
	}
}

// cached are the files of libcni's cache.
func (s *stage) cached() []string {
	s.t.Helper()
	entries, err := os.ReadDir(s.path("state", "results"))
	if err != nil && !os.IsNotExist(err) {
		s.t.Fatal(err)
	}
	names := []string{}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestFault_F8_OneOfSeveralNetworksFails(t *testing.T) {
	for _, serially := range []bool{false, true} {
		s := newStage(t)
		r := s.runtime(cni.WithConfListBytes(s.network("one", "1.0.0", "p")), cni.WithConfListBytes(s.network("two", "1.0.0", "q", "r")),
			cni.WithConfListBytes(s.network("three", "1.0.0", "s")))
		s.on("p", "ADD", gives("10.0.0.1/24"))
		s.on("q", "ADD", gives("10.0.0.2/24"))
		s.on("r", "ADD", says(5, "no"))
		setup := r.Setup
		if serially {
			setup = r.SetupSerially
		}
		_, err := setup(t.Context(), "c1", s.container("c1"))
		wantSame(t, "errors", messages(err), []string{"r: no"})
		calls := s.takeCalls()
		dels := slices.DeleteFunc(slices.Clone(calls), func(c scripted.Call) bool { return c.Verb != "DEL" })
		want := []string{"DEL r 10.0.0.2/24", "DEL q 10.0.0.2/24", "DEL p 10.0.0.1/24"}
		if serially { // stops at the failure, and undoes what had begun
			wantSame(t, "calls", rendered(calls), []string{"ADD p c1/eth0", "ADD q c1/eth1", "ADD r c1/eth1",
				"DEL r c1/eth1", "DEL q c1/eth1", "DEL p c1/eth0"})
		} else {
			want = slices.Insert(want, 0, "DEL s 10.9.0.2/24")
		}
		wantSame(t, "prevResult at DEL", prevResults(t, dels), want)
		wantSame(t, "cache", s.cached(), []string{})
	}
}

func TestFault_F8_TheLastPluginOfAChainFails(t *testing.T) {
	for _, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		s := newStage(t)
		r := s.runtime(cni.WithConfListBytes(s.network("net", version, "p", "q", "r")))
		s.on("r", "ADD", scripted.Action{Signal: 9})
		_, err := r.Setup(t.Context(), "c1", s.container("c1"))
		if got := asError(t, err); got.Plugin != "r" || !strings.Contains(got.Error(), "killed by signal 9") {
			t.Errorf("error %v", err)
		}
		wantSame(t, "DELs", prevResults(t, s.takeCalls()), []string{"ADD p none", "ADD q 10.9.0.2/24", "ADD r 10.9.0.2/24",
			"DEL r 10.9.0.2/24", "DEL q 10.9.0.2/24", "DEL p 10.9.0.2/24"})
		wantSame(t, "cache", s.cached(), []string{})
	}
}

func TestFault_F8_AnErrorOfTheRollbackIsPartOfTheError(t *testing.T) {
	s := newStage(t)
	r := s.runtime(cni.WithConfListBytes(s.network("net", "1.0.0", "p", "q")))
	s.on("q", "ADD", says(5, "no"))
	s.on("q", "DEL", says(6, "stuck"))
	s.on("p", "DEL", says(7, "stuck too"))
	_, err := r.Setup(t.Context(), "c1", s.container("c1"))
	wantSame(t, "errors", messages(err), []string{"q: no", "q: stuck", "p: stuck too"})
	if !strings.Contains(err.Error(), "roll back: ") {
		t.Errorf("error %q does not say that it was the rollback", err)
	}
}

func TestFault_F14_TheCallersContextEndsDuringADD(t *testing.T) {
	s := newStage(t)
	r := s.runtime(cni.WithConfListBytes(s.network("one", "1.0.0", "p", "q")), cni.WithConfListBytes(s.network("two", "1.0.0", "r")))
	s.on("p", "ADD", gives("10.0.0.1/24"))
	s.on("q", "ADD", scripted.Action{Fork: true, Block: s.gate("q")})
	ctx, cancel := context.WithCancelCause(t.Context())
	path := s.container("c1")
	done := begin(func() error { _, err := r.SetupSerially(ctx, "c1", path); return err })
	letGo := s.arrive(s.path("gate-q"))
	why := errors.New("the pod was deleted")
	cancel(why)
	err := await(t, "Setup", done)
	letGo()
	wantIs(t, err, context.Canceled, why)
	wantSame(t, "plugin", asError(t, err).Plugin, "q")
	wantSame(t, "calls", prevResults(t, s.takeCalls()), []string{"ADD p none", "ADD q 10.0.0.1/24",
		"DEL q 10.0.0.1/24", "DEL p 10.0.0.1/24"})
	wantSame(t, "processes", children(t), nil)
	wantSame(t, "cache", s.cached(), []string{})
}

func TestFault_F14_ASetupWhoseContextIsOverRunsNothing(t *testing.T) {
	s := newStage(t)
	r := s.runtime(cni.WithConfListBytes(s.network("net", "1.0.0", "p")))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	path := s.container("c1")
	_, err := r.Setup(ctx, "c1", path)
	wantIs(t, err, context.Canceled)
	wantIs(t, r.Check(ctx, "c1", path), context.Canceled)
	wantSame(t, "calls", s.took(), []string{})
}

func TestFault_F14_RemoveWithACancelledContextRunsEverything(t *testing.T) {
	s := newStage(t)
	r := s.runtime(cni.WithConfListBytes(s.network("one", "1.0.0", "p", "q")), cni.WithConfListBytes(s.network("two", "1.0.0", "r")))
	path := s.container("c1")
	_, err := r.Setup(t.Context(), "c1", path)
	wantNil(t, err)
	s.takeCalls()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantNil(t, r.Remove(ctx, "c1", path))
	wantSame(t, "calls", s.took(), []string{"DEL r c1/eth1", "DEL q c1/eth0", "DEL p c1/eth0"})
	wantSame(t, "cache", s.cached(), []string{})
}

func TestFault_F9_EveryPluginOfEveryNetworkIsAskedWhateverFails(t *testing.T) {
	s := newStage(t)
	r := s.runtime(cni.WithTimeouts(cni.Timeouts{Del: 300 * time.Millisecond}),
		cni.WithConfListBytes(s.network("one", "1.0.0", "p", "q")), cni.WithConfListBytes(s.network("two", "1.0.0", "r", "s", "t")))
	path := s.container("c1")
	_, err := r.Setup(t.Context(), "c1", path)
	wantNil(t, err)
	s.takeCalls()
	s.on("t", "DEL", scripted.Action{Hang: true})
	s.on("s", "DEL", scripted.Action{Signal: 11})
	s.on("q", "DEL", scripted.Action{Exit: 2})
	wantNil(t, os.Remove(s.path("bin", "r")))
	err = await(t, "Remove", begin(func() error { return r.Remove(t.Context(), "c1", path) }))
	wantIs(t, err, context.DeadlineExceeded, cni.ErrPluginNotFound)
	wantSame(t, "plugins with errors", messages(err), []string{"t: ", "s: ", "r: ", "q: "})
	wantSame(t, "calls", s.took(), []string{"DEL t c1/eth1", "DEL s c1/eth1", "DEL q c1/eth0", "DEL p c1/eth0"})
	wantSame(t, "cache", s.cached(), []string{"one-c1-eth0", "two-c1-eth1"})
}

// overshoot is how much longer f takes than a deadline of a second, and wants
// that to be at most half a second and no process to be left.
func overshoot(t *testing.T, what string, f func() error) error {
	t.Helper()
	start := time.Now()
	err := await(t, what, begin(f))
	over := time.Since(start) - time.Second
	t.Logf("M7: %s: %v over a deadline of 1s", what, over)
	if over < 0 || over > 500*time.Millisecond {
		t.Errorf("%s took %v over its deadline, want at most 500ms", what, over)
	}
	wantIs(t, err, context.DeadlineExceeded)
	wantSame(t, "processes", children(t), nil)
	return err
}

func TestFault_F13_APluginsChildHoldsStdoutPastTheDeadline(t *testing.T) {
	s := newStage(t)
	conf := cni.WithConfListBytes(s.network("net", "1.0.0", "p", "q"))
	path := s.container("c1")
	rolledBack := []string{"ADD p c1/eth0", "ADD q c1/eth0", "DEL q c1/eth0", "DEL p c1/eth0"}
	for what, hang := range map[string]scripted.Action{
		"the plugin and its child hang": {Fork: true, Hang: true},
		"the plugin hangs":              {Hang: true},
	} {
		s.on("q", "ADD", hang)
		overshoot(t, what+", the caller's context", func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			return setUp(ctx, s.runtime(conf), "c1", path)()
		})
		wantSame(t, "calls", s.took(), rolledBack)
		timed := s.runtime(conf, cni.WithTimeouts(cni.Timeouts{Add: time.Second}))
		err := overshoot(t, what+", WithTimeouts", setUp(t.Context(), timed, "c1", path))
		if want := "took longer than the 1s that a plugin has for ADD"; !strings.Contains(err.Error(), want) {
			t.Errorf("error %q, want %q in it", err, want)
		}
		wantSame(t, "calls", s.took(), rolledBack)
	}
	wantSame(t, "cache", s.cached(), []string{})
}

func TestFault_F13_TheChildOfAFailedPluginHoldsNobodyUp(t *testing.T) {
	s := newStage(t)
	r := s.runtime(cni.WithConfListBytes(s.network("net", "1.0.0", "p")))
	s.on("p", "ADD", scripted.Action{Fork: true, Exit: 1, Stdout: says(5, "no").Stdout})
	start := time.Now()
	_, err := r.Setup(t.Context(), "c1", s.container("c1"))
	wantSame(t, "errors", messages(err), []string{"p: no"})
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("took %v", took)
	}
	wantSame(t, "processes", children(t), nil)
}

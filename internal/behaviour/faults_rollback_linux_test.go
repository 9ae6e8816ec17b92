package behaviour_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
)

func TestFault_F4_ADELErrorIsNotJudgedByItsText(t *testing.T) {
	for _, text := range []string{"iptables: executable file not found in $PATH", "not found", "no such file or directory",
		"unknown FS magic on \"/run/netns/x\": 1021994", "already deleted"} {
		s := newStage(t)
		r := s.Runtime(cni.WithConfListBytes(s.Network("net", "1.0.0", "p")))
		path := s.Container("c1")
		testhost.MustSetUp(t, r, "c1", path)
		s.On("p", "DEL", testhost.Says(999, text))
		expect.Same(t, text, testhost.Messages(r.Remove(t.Context(), "c1", path)), []string{"p: " + text})
		expect.NoError(t, r.Check(t.Context(), "c1", path)) // still recorded
	}
}

func TestFault_F8_OneOfSeveralNetworksFails(t *testing.T) {
	for _, serially := range []bool{false, true} {
		s := newStage(t)
		r := s.Runtime(cni.WithConfListBytes(s.Network("one", "1.0.0", "p")), cni.WithConfListBytes(s.Network("two", "1.0.0", "q", "r")),
			cni.WithConfListBytes(s.Network("three", "1.0.0", "s")))
		s.On("p", "ADD", gives("10.0.0.1/24"))
		s.On("q", "ADD", gives("10.0.0.2/24"))
		s.On("r", "ADD", testhost.Says(5, "no"))
		setup := r.Setup
		if serially {
			setup = r.SetupSerially
		}
		_, err := setup(t.Context(), "c1", s.Container("c1"))
		expect.Same(t, "errors", testhost.Messages(err), []string{"r: no"})
		calls := s.TakeCalls()
		dels := slices.DeleteFunc(slices.Clone(calls), func(c scripted.Call) bool { return c.Verb != "DEL" })
		want := []string{"DEL r 10.0.0.2/24", "DEL q 10.0.0.2/24", "DEL p 10.0.0.1/24"}
		if serially { // stops at the failure and undoes earlier work
			expect.Same(t, "calls", testhost.Rendered(calls), []string{"ADD p c1/eth0", "ADD q c1/eth1", "ADD r c1/eth1",
				"DEL r c1/eth1", "DEL q c1/eth1", "DEL p c1/eth0"})
		} else {
			want = slices.Insert(want, 0, "DEL s 10.9.0.2/24")
		}
		expect.Same(t, "prevResult at DEL", prevResults(t, dels), want)
		expect.Same(t, "cache", s.Cached(), []string{})
	}
}

func TestFault_F8_TheLastPluginOfAChainFails(t *testing.T) {
	for _, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		s := newStage(t)
		r := s.Runtime(cni.WithConfListBytes(s.Network("net", version, "p", "q", "r")))
		s.On("r", "ADD", scripted.Action{Signal: 9})
		_, err := r.Setup(t.Context(), "c1", s.Container("c1"))
		if got := testhost.AsError(t, err); got.Plugin != "r" || !strings.Contains(got.Error(), "killed by signal 9") {
			t.Errorf("error %v", err)
		}
		expect.Same(t, "DELs", prevResults(t, s.TakeCalls()), []string{"ADD p none", "ADD q 10.9.0.2/24", "ADD r 10.9.0.2/24",
			"DEL r 10.9.0.2/24", "DEL q 10.9.0.2/24", "DEL p 10.9.0.2/24"})
		expect.Same(t, "cache", s.Cached(), []string{})
	}
}

func TestFault_F8_AnErrorOfTheRollbackIsPartOfTheError(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(cni.WithConfListBytes(s.Network("net", "1.0.0", "p", "q")))
	s.On("q", "ADD", testhost.Says(5, "no"))
	s.On("q", "DEL", testhost.Says(6, "stuck"))
	s.On("p", "DEL", testhost.Says(7, "stuck too"))
	_, err := r.Setup(t.Context(), "c1", s.Container("c1"))
	expect.Same(t, "errors", testhost.Messages(err), []string{"q: no", "q: stuck", "p: stuck too"})
	says(t, err, "roll back: ")
}

func TestFault_F14_TheCallersContextEndsDuringADD(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(cni.WithConfListBytes(s.Network("one", "1.0.0", "p", "q")), cni.WithConfListBytes(s.Network("two", "1.0.0", "r")))
	s.On("p", "ADD", gives("10.0.0.1/24"))
	s.On("q", "ADD", scripted.Action{Fork: true, Block: s.Gate("q")})
	ctx, cancel := context.WithCancelCause(t.Context())
	path := s.Container("c1")
	done := testhost.Begin(func() error { _, err := r.SetupSerially(ctx, "c1", path); return err })
	letGo := s.Arrive(s.Path("gate-q"))
	why := errors.New("the pod was deleted")
	cancel(why)
	err := expect.Await(t, "Setup", done)
	letGo()
	expect.Is(t, err, context.Canceled, why)
	expect.Same(t, "plugin", testhost.AsError(t, err).Plugin, "q")
	expect.Same(t, "calls", prevResults(t, s.TakeCalls()), []string{"ADD p none", "ADD q 10.0.0.1/24",
		"DEL q 10.0.0.1/24", "DEL p 10.0.0.1/24"})
	expect.Same(t, "processes", testhost.Children(t), nil)
	expect.Same(t, "cache", s.Cached(), []string{})
}

func TestFault_F14_ASetupWhoseContextIsOverRunsNothing(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(cni.WithConfListBytes(s.Network("net", "1.0.0", "p")))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	path := s.Container("c1")
	expect.Is(t, errOf(r.Setup(ctx, "c1", path)), context.Canceled)
	expect.Is(t, r.Check(ctx, "c1", path), context.Canceled)
	expect.Same(t, "calls", s.Took(), []string{})
}

func TestFault_F14_RemoveWithACancelledContextRunsEverything(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(cni.WithConfListBytes(s.Network("one", "1.0.0", "p", "q")), cni.WithConfListBytes(s.Network("two", "1.0.0", "r")))
	path := s.Container("c1")
	testhost.MustSetUp(t, r, "c1", path)
	s.TakeCalls()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	expect.NoError(t, r.Remove(ctx, "c1", path))
	expect.Same(t, "calls", s.Took(), []string{"DEL r c1/eth1", "DEL q c1/eth0", "DEL p c1/eth0"})
	expect.Same(t, "cache", s.Cached(), []string{})
}

func TestFault_F9_EveryPluginOfEveryNetworkRunsDespiteFailures(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(cni.WithTimeouts(cni.Timeouts{Del: 3 * time.Second}),
		cni.WithConfListBytes(s.Network("one", "1.0.0", "p", "q")), cni.WithConfListBytes(s.Network("two", "1.0.0", "r", "s", "t")))
	path := s.Container("c1")
	testhost.MustSetUp(t, r, "c1", path)
	s.TakeCalls()
	s.On("t", "DEL", scripted.Action{Hang: true})
	s.On("s", "DEL", scripted.Action{Signal: 11})
	s.On("q", "DEL", scripted.Action{Exit: 2})
	expect.NoError(t, os.Remove(s.Path("bin", "r")))
	err := expect.Await(t, "Remove", testhost.Begin(func() error { return r.Remove(t.Context(), "c1", path) }))
	expect.Is(t, err, context.DeadlineExceeded, cni.ErrPluginNotFound)
	expect.Same(t, "plugins with errors", testhost.Messages(err), []string{"t: ", "s: ", "r: ", "q: "})
	expect.Same(t, "calls", s.Took(), []string{"DEL t c1/eth1", "DEL s c1/eth1", "DEL q c1/eth0", "DEL p c1/eth0"})
	expect.Same(t, "cache", s.Cached(), []string{"one-c1-eth0", "two-c1-eth1"})
}

// inTime is a deadline in which two plugins begin, on a slow machine too.
const inTime = 2 * time.Second

// overshoot calls f, which has a deadline. It returns long before what hangs ends, and no
// process may remain. How much later than the deadline is measured by M7, on a quiet
// machine.
func overshoot(t *testing.T, what string, f func() error) error {
	t.Helper()
	start := time.Now()
	err := expect.Await(t, what, testhost.Begin(f))
	over := time.Since(start) - inTime
	t.Logf("M7: %s: %v over a deadline of %v", what, over, inTime)
	if over < 0 || over > expect.Patience/2 {
		t.Errorf("%s took %v over its deadline", what, over)
	}
	expect.Is(t, err, context.DeadlineExceeded)
	expect.Same(t, "processes", testhost.Children(t), nil)
	return err
}

func TestFault_F13_APluginsChildHoldsStdoutPastTheDeadline(t *testing.T) {
	s := newStage(t)
	conf := cni.WithConfListBytes(s.Network("net", "1.0.0", "p", "q"))
	path := s.Container("c1")
	rolledBack := []string{"ADD p c1/eth0", "ADD q c1/eth0", "DEL q c1/eth0", "DEL p c1/eth0"}
	for what, hang := range map[string]scripted.Action{
		"the plugin and its child hang": {Fork: true, Hang: true},
		"the plugin hangs":              {Hang: true},
	} {
		s.On("q", "ADD", hang)
		overshoot(t, what+", the caller's context", func() error {
			ctx, cancel := context.WithTimeout(t.Context(), inTime)
			defer cancel()
			return testhost.SetUp(ctx, s.Runtime(conf), "c1", path)()
		})
		expect.Same(t, "calls", s.Took(), rolledBack)
		timed := s.Runtime(conf, cni.WithTimeouts(cni.Timeouts{Add: inTime}))
		err := overshoot(t, what+", WithTimeouts", testhost.SetUp(t.Context(), timed, "c1", path))
		says(t, err, "took longer than the 2s that a plugin has for ADD")
		expect.Same(t, "calls", s.Took(), rolledBack)
	}
	expect.Same(t, "cache", s.Cached(), []string{})
}

func TestFault_F13_TheChildOfAFailedPluginBlocksNobody(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(cni.WithConfListBytes(s.Network("net", "1.0.0", "p")))
	s.On("p", "ADD", scripted.Action{Fork: true, Exit: 1, Stdout: testhost.Says(5, "no").Stdout})
	start := time.Now()
	_, err := r.Setup(t.Context(), "c1", s.Container("c1"))
	expect.Same(t, "errors", testhost.Messages(err), []string{"p: no"})
	if took := time.Since(start); took > expect.Patience/2 {
		t.Errorf("took %v", took)
	}
	expect.Same(t, "processes", testhost.Children(t), nil)
}

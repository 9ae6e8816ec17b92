package behaviour_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
)

// TestHealthCountsChecks apart from the comparison.
func TestHealthCountsChecks(t *testing.T) {
	s, _, conf := inhabited(t, "c1", "c2")
	r := s.restarted(conf)
	report := expect.Value(r.Health(t.Context(), cni.HealthOptions{}))(t)
	report.Checks.Took = 0
	expect.Same(t, "all well", report.Checks, cni.HealthChecks{Asked: 4})
	expect.Same(t, "healthy", report.Count(cni.StateHealthy), 2)

	s.On("q", "CHECK", testhost.Says(5, "no"))
	s.On("p", "CHECK", scripted.Action{})
	report = expect.Value(r.Health(t.Context(), cni.HealthOptions{Containers: []string{"c2", "c1", "c2"}}))(t)
	report.Checks.Took = 0
	expect.Same(t, "one fails", report.Checks, cni.HealthChecks{Asked: 4, Failed: 2})
	expect.Same(t, "order", []string{report.Containers[0].ContainerID, report.Containers[1].ContainerID}, []string{"c1", "c2"})

	s.On("p", "CHECK", scripted.Action{Signal: 9})
	report = expect.Value(r.Health(t.Context(), cni.HealthOptions{}))(t)
	report.Checks.Took = 0
	expect.Same(t, "one is killed", report.Checks, cni.HealthChecks{Asked: 2, Unanswered: 2})
	if text := report.String(); !strings.Contains(text, "c1: unknown: ") || !strings.Contains(text, "CHECK: 2 asked, 0 failed, 2 gave no answer; 0 attachments not asked") {
		t.Error(text)
	}
}

// TestHealthWithoutCheck: parts of other programs' plugins are listed as not compared, if
// nobody wants to hear from them.
func TestHealthWithoutCheck(t *testing.T) {
	want := cni.Health{ContainerID: "c1", State: cni.StateHealthy, Uncompared: []string{"p", "q"}}
	s, _, conf := inhabited(t, "c1")
	h, report := healthOf(t, s.restarted(conf), cni.HealthOptions{WithoutCheck: true})
	expect.Same(t, "verdict", h, want)
	expect.Same(t, "checks", report.Checks, cni.HealthChecks{})
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
	h, report := healthOf(t, s.restarted(conf), cni.HealthOptions{CheckBudget: 300 * time.Millisecond})
	if took := time.Since(begun); took > expect.Patience {
		t.Errorf("took %s", took)
	}
	expect.Same(t, "state", h.State, cni.StateUnknown)
	expect.Is(t, h.Reason, context.DeadlineExceeded)
	expect.Same(t, "not asked", report.Checks.NotAsked, 2)
	expect.Same(t, "failed", report.Checks.Failed+report.Checks.Unanswered, 0)
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
	expect.Same(t, "containers", len(report.Containers), 0)
	h, _ := healthOf(t, other, cni.HealthOptions{Containers: []string{"c1"}})
	expect.Same(t, "by its ID", h.State, cni.StateHealthy)
}

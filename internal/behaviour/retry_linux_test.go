package behaviour_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
)

// retrying returns a stage with a network of plugins p and q, and a Runtime
// that makes three attempts.
func retrying(t *testing.T) (s *stage, r *cni.Runtime, path string) {
	t.Helper()
	s = newStage(t)
	r = s.Runtime(cni.WithConfListBytes(s.Network("net", "1.0.0", "p", "q")),
		cni.WithRetry(cni.Retry{Attempts: 3, Delay: time.Millisecond, MaxDelay: 2 * time.Millisecond}))
	return s, r, s.Container("c1")
}

var oneAttempt = []string{"ADD p c1/eth0", "ADD q c1/eth0", "DEL q c1/eth0", "DEL p c1/eth0"}

func TestDuty_R41_TransientErrorsAreRetriedAfterADEL(t *testing.T) {
	busy := testhost.Says(100, "failed to create bridge: could not add \"br0\": File exists")
	for what, failure := range map[string]scripted.Action{"code 11": testhost.Says(11, "not now"), "the bridge's race": busy} {
		s, r, path := retrying(t)
		gate := s.Gate("q")
		failure.Block = gate
		s.On("q", "ADD", failure)
		done := testhost.Begin(testhost.SetUp(t.Context(), r, "c1", path))
		letGo := s.Arrive(gate)
		s.On("q", "ADD", scripted.Action{}) // for the next attempt
		letGo()
		expect.NoError(t, expect.Await(t, "Setup", done))
		expect.Same(t, what, s.Took(), append(slices.Clone(oneAttempt), "ADD p c1/eth0", "ADD q c1/eth0"))
		expect.Same(t, what+": on record", testhost.Recorded(t, r), []string{"c1/eth0 attached"})
		expect.NoError(t, r.Remove(t.Context(), "c1", ""))
	}
}

func TestDuty_R41_AttemptsAreBounded(t *testing.T) {
	s, r, path := retrying(t)
	s.On("q", "ADD", testhost.Says(11, "not now"))
	err := testhost.SetUp(t.Context(), r, "c1", path)()
	expect.Same(t, "errors", testhost.Messages(err), []string{"q: not now"})
	expect.Same(t, "calls", s.Took(), slices.Concat(oneAttempt, oneAttempt, oneAttempt))
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{})
	expect.Same(t, "kept", s.Pinned("c1"), false)
}

func TestDuty_R41_PermanentErrorsAreNotRetried(t *testing.T) {
	s, r, path := retrying(t)
	s.On("q", "ADD", testhost.Says(5, "no"))
	expect.Same(t, "errors", testhost.Messages(testhost.SetUp(t.Context(), r, "c1", path)()), []string{"q: no"})
	expect.Same(t, "calls", s.Took(), oneAttempt)

	s.On("q", "ADD", testhost.Says(11, "not now"))
	expect.NoError(t, r.Load(cni.WithRetry(cni.Retry{}), cni.WithConfListBytes(s.Network("net", "1.0.0", "p", "q"))))
	expect.Same(t, "errors", testhost.Messages(testhost.SetUp(t.Context(), r, "c1", path)()), []string{"q: not now"})
	expect.Same(t, "calls without the option", s.Took(), oneAttempt)
}

func TestDuty_R41_NotTriedAgainIfOneOfSeveralDoesNotPass(t *testing.T) {
	s, r, path := retrying(t)
	expect.NoError(t, r.Load(cni.WithConfListBytes(s.Network("one", "1.0.0", "p")), cni.WithConfListBytes(s.Network("two", "1.0.0", "q"))))
	s.On("p", "ADD", testhost.Says(11, "not now"))
	s.On("q", "ADD", testhost.Says(5, "no"))
	expect.Same(t, "errors", testhost.Messages(testhost.SetUp(t.Context(), r, "c1", path)()), []string{"p: not now", "q: no"})
	calls := s.Took()
	expect.Same(t, "DELs", calls[2:], []string{"DEL q c1/eth1", "DEL p c1/eth0"})
}

func TestDuty_R41_NeverAnADDOnTopOfOneThatCouldNotBeUndone(t *testing.T) {
	s, r, path := retrying(t)
	s.On("q", "ADD", testhost.Says(11, "not now"))
	s.On("p", "DEL", testhost.Says(11, "stuck"))
	err := testhost.SetUp(t.Context(), r, "c1", path)()
	expect.Same(t, "errors", testhost.Messages(err), []string{"q: not now", "p: stuck"})
	expect.Same(t, "calls", s.Took(), oneAttempt)
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c1/eth0 failed"})

	// The next Setup begins with the leftovers of this one.
	s.On("p", "DEL", scripted.Action{})
	s.On("q", "ADD", scripted.Action{})
	expect.NoError(t, testhost.SetUp(t.Context(), r, "c1", path)())
	expect.Same(t, "calls", s.Took(), []string{"DEL q c1/eth0", "DEL p c1/eth0", "ADD p c1/eth0", "ADD q c1/eth0"})
}

func TestDuty_R41_TheContextBoundsThePauses(t *testing.T) {
	s, r, path := retrying(t)
	s.On("q", "ADD", testhost.Says(11, "not now"))
	expect.NoError(t, r.Load(cni.WithRetry(cni.Retry{Attempts: 3, Delay: time.Hour, MaxDelay: time.Hour}),
		cni.WithConfListBytes(s.Network("net", "1.0.0", "p", "q"))))
	ctx, cancel := context.WithCancel(t.Context())
	done := testhost.Begin(testhost.SetUp(ctx, r, "c1", path))
	expect.Same(t, "pauses", s.blocked(".waitFor", 1), 1)
	expect.Same(t, "on record in the pause", testhost.Recorded(t, r), []string{})
	cancel()
	expect.Same(t, "errors", testhost.Messages(expect.Await(t, "Setup", done)), []string{"q: not now"})
	expect.Same(t, "calls", s.Took(), oneAttempt)
}

func TestRetriesThatAreNoneAreRefused(t *testing.T) {
	for _, r := range []cni.Retry{{Attempts: -1}, {Delay: -1}, {MaxDelay: -1}} {
		_, err := cni.New(cni.WithRetry(r))
		if !errors.Is(err, cni.ErrInvalidArgument) {
			t.Errorf("%+v: error %v", r, err)
		}
	}
}

func TestDuty_R41_NoPauseIsLongerThanTheLongest(t *testing.T) {
	s, r, path := retrying(t)
	s.On("q", "ADD", testhost.Says(11, "not now"))
	expect.NoError(t, r.Load(cni.WithRetry(cni.Retry{Attempts: 3, Delay: time.Hour, MaxDelay: time.Millisecond}),
		cni.WithConfListBytes(s.Network("net", "1.0.0", "p", "q"))))
	expect.Same(t, "errors", testhost.Messages(testhost.SetUp(t.Context(), r, "c1", path)()), []string{"q: not now"})
	expect.Same(t, "calls", s.Took(), slices.Repeat(oneAttempt, 3))
}

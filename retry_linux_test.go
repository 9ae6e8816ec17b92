package cni_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/scripted"
)

// retrying is a stage with a network of plugins p and q, and a Runtime that
// tries it three times.
func retrying(t *testing.T) (s *stage, r *cni.Runtime, path string) {
	t.Helper()
	s = newStage(t)
	r = s.runtime(cni.WithConfListBytes(s.network("net", "1.0.0", "p", "q")),
		cni.WithRetry(cni.Retry{Attempts: 3, Delay: time.Millisecond, MaxDelay: 2 * time.Millisecond}))
	return s, r, s.container("c1")
}

var oneAttempt = []string{"ADD p c1/eth0", "ADD q c1/eth0", "DEL q c1/eth0", "DEL p c1/eth0"}

func TestDuty_R41_WhatPassesIsTriedAgainAfterADEL(t *testing.T) {
	busy := says(100, "failed to create bridge: could not add \"br0\": File exists")
	for what, failure := range map[string]scripted.Action{"code 11": says(11, "not now"), "the bridge's race": busy} {
		s, r, path := retrying(t)
		gate := s.gate("q")
		failure.Block = gate
		s.on("q", "ADD", failure)
		done := begin(setUp(t.Context(), r, "c1", path))
		letGo := s.arrive(gate)
		s.on("q", "ADD", scripted.Action{}) // for the next attempt
		letGo()
		wantNil(t, await(t, "Setup", done))
		wantSame(t, what, s.took(), append(slices.Clone(oneAttempt), "ADD p c1/eth0", "ADD q c1/eth0"))
		wantSame(t, what+": on record", recorded(t, r), []string{"c1/eth0 attached"})
		wantNil(t, r.Remove(t.Context(), "c1", ""))
	}
}

func TestDuty_R41_AttemptsAreBounded(t *testing.T) {
	s, r, path := retrying(t)
	s.on("q", "ADD", says(11, "not now"))
	err := setUp(t.Context(), r, "c1", path)()
	wantSame(t, "errors", messages(err), []string{"q: not now"})
	wantSame(t, "calls", s.took(), slices.Concat(oneAttempt, oneAttempt, oneAttempt))
	wantSame(t, "on record", recorded(t, r), []string{})
	wantSame(t, "kept", s.pinned("c1"), false)
}

func TestDuty_R41_WhatDoesNotPassIsNotTriedAgain(t *testing.T) {
	s, r, path := retrying(t)
	s.on("q", "ADD", says(5, "no"))
	wantSame(t, "errors", messages(setUp(t.Context(), r, "c1", path)()), []string{"q: no"})
	wantSame(t, "calls", s.took(), oneAttempt)

	s.on("q", "ADD", says(11, "not now"))
	wantNil(t, r.Load(cni.WithRetry(cni.Retry{}), cni.WithConfListBytes(s.network("net", "1.0.0", "p", "q"))))
	wantSame(t, "errors", messages(setUp(t.Context(), r, "c1", path)()), []string{"q: not now"})
	wantSame(t, "calls without the option", s.took(), oneAttempt)
}

func TestDuty_R41_NotTriedAgainIfOneOfSeveralDoesNotPass(t *testing.T) {
	s, r, path := retrying(t)
	wantNil(t, r.Load(cni.WithConfListBytes(s.network("one", "1.0.0", "p")), cni.WithConfListBytes(s.network("two", "1.0.0", "q"))))
	s.on("p", "ADD", says(11, "not now"))
	s.on("q", "ADD", says(5, "no"))
	wantSame(t, "errors", messages(setUp(t.Context(), r, "c1", path)()), []string{"p: not now", "q: no"})
	calls := s.took()
	wantSame(t, "DELs", calls[2:], []string{"DEL q c1/eth1", "DEL p c1/eth0"})
}

func TestDuty_R41_NeverAnADDOnTopOfOneThatCouldNotBeUndone(t *testing.T) {
	s, r, path := retrying(t)
	s.on("q", "ADD", says(11, "not now"))
	s.on("p", "DEL", says(11, "stuck"))
	err := setUp(t.Context(), r, "c1", path)()
	wantSame(t, "errors", messages(err), []string{"q: not now", "p: stuck"})
	wantSame(t, "calls", s.took(), oneAttempt)
	wantSame(t, "on record", recorded(t, r), []string{"c1/eth0 failed"})

	// The next Setup begins with what this one left.
	s.on("p", "DEL", scripted.Action{})
	s.on("q", "ADD", scripted.Action{})
	wantNil(t, setUp(t.Context(), r, "c1", path)())
	wantSame(t, "calls", s.took(), []string{"DEL q c1/eth0", "DEL p c1/eth0", "ADD p c1/eth0", "ADD q c1/eth0"})
}

func TestDuty_R41_TheContextBoundsThePauses(t *testing.T) {
	s, r, path := retrying(t)
	s.on("q", "ADD", says(11, "not now"))
	wantNil(t, r.Load(cni.WithRetry(cni.Retry{Attempts: 3, Delay: time.Hour, MaxDelay: time.Hour}),
		cni.WithConfListBytes(s.network("net", "1.0.0", "p", "q"))))
	ctx, cancel := context.WithCancel(t.Context())
	done := begin(setUp(ctx, r, "c1", path))
	wantSame(t, "pauses", s.blocked(".Retry.wait", 1), 1)
	wantSame(t, "on record in the pause", recorded(t, r), []string{})
	cancel()
	wantSame(t, "errors", messages(await(t, "Setup", done)), []string{"q: not now"})
	wantSame(t, "calls", s.took(), oneAttempt)
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
	s.on("q", "ADD", says(11, "not now"))
	wantNil(t, r.Load(cni.WithRetry(cni.Retry{Attempts: 3, Delay: time.Hour, MaxDelay: time.Millisecond}),
		cni.WithConfListBytes(s.network("net", "1.0.0", "p", "q"))))
	wantSame(t, "errors", messages(setUp(t.Context(), r, "c1", path)()), []string{"q: not now"})
	wantSame(t, "calls", s.took(), slices.Repeat(oneAttempt, 3))
}

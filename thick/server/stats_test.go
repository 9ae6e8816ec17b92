package server

import (
	"context"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/thick/internal/wire"
)

// TestStats counts calls that wait, have a slot, and have lost it; and the bytes of requests.
func TestStats(t *testing.T) {
	s := expect.Value(New(struct{ Backend }{}, Options{Limits: Limits{Concurrent: 1, Requests: 1000, Request: 100}}))(t)
	want := Stats{Adds: CallStats{Slots: 2}, Dels: CallStats{Slots: 2}, Others: CallStats{Slots: 2}, RequestLimit: 1000}
	same := func(when string) {
		t.Helper()
		expect.Same(t, when, s.Stats(), want)
	}
	same("idle")
	s.gate.slow = time.Hour
	begin := func(verb, network string) *turn {
		t.Helper()
		one := s.gate.turn(verb, false)
		expect.NoError(t, one.sit())
		if network != "" {
			expect.NoError(t, one.enter(context.Background(), Use{Networks: []string{network}}))
		}
		return one
	}
	first := begin(wire.Add, "a")
	sits := begin(wire.Add, "")
	second := s.gate.turn(wire.Add, false)
	expect.NoError(t, second.sit())
	entered := make(chan error, 1)
	go func() { entered <- second.enter(context.Background(), Use{Networks: []string{"a"}}) }() // the other slot is kept for others
	expect.Eventually(t, "the second call waits for a slot", func() bool {
		s.gate.mu.Lock()
		defer s.gate.mu.Unlock()
		return second.granted != nil
	})
	del, status := begin(wire.Del, "a"), begin(wire.Status, "a")
	expect.Same(t, "room", s.bytes.change(0, 300), true)
	want.Adds.Running, want.Adds.Waiting, want.Dels.Running, want.Others.Running, want.RequestBytes = 1, 2, 1, 1, 300
	same("with calls")
	first.overrun() // its slot goes to the one that waits
	expect.NoError(t, expect.Await(t, "the second call's slot", entered))
	want.Adds.Overtime, want.Adds.Waiting = 1, 1
	same("with one that is slow")
	for _, one := range []*turn{first, sits, second, del, status} {
		one.leave()
	}
	s.bytes.change(300, 0)
	want = Stats{Adds: CallStats{Slots: 2}, Dels: CallStats{Slots: 2}, Others: CallStats{Slots: 2}, RequestLimit: 1000}
	same("at the end")
}

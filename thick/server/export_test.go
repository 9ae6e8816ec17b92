package server

import (
	"context"
	"time"
)

// ByProcess is a context of a call whose client is a process.
func ByProcess(ctx context.Context, pid int) context.Context {
	return context.WithValue(ctx, peerKey{}, peer{pid: pid})
}

// SetGiveUp changes how long a Shutdown waits for calls that it has cancelled.
func SetGiveUp(s *Server, d time.Duration) { s.giveUp = d }

// Waiting returns how many calls wait for their turn or for a readiness file.
func Waiting(s *Server) int {
	s.gate.mu.Lock()
	defer s.gate.mu.Unlock()
	return int(s.gate.places.total - s.gate.places.free)
}

// Lined returns how many calls wait for a slot.
func Lined(s *Server) (n int) {
	s.gate.mu.Lock()
	defer s.gate.mu.Unlock()
	for _, c := range s.gate.classes {
		for _, f := range c.flows {
			n += len(f.calls)
		}
	}
	return n
}

// Running returns how many calls have a slot, or had one.
func Running(s *Server) (n int) {
	s.gate.mu.Lock()
	defer s.gate.mu.Unlock()
	for _, c := range s.gate.classes {
		n += int(c.slots.total - c.slots.free)
	}
	return n + int(s.gate.overtime.total-s.gate.overtime.free)
}

// SetSlow changes how long a call keeps others from its slot. Call it before the first call.
func SetSlow(s *Server, d time.Duration) { s.gate.slow = d }

// Room returns how many bytes of requests may be taken in.
func Room(s *Server) int64 {
	s.bytes.mu.Lock()
	defer s.bytes.mu.Unlock()
	return s.bytes.pool.free
}

// Awaited returns how many calls wait for a file.
func Awaited(s *Server, path string) int {
	s.files.mu.Lock()
	defer s.files.mu.Unlock()
	if a := s.files.awaits[path]; a != nil {
		return a.waiting
	}
	return 0
}

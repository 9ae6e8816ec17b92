package server

import "time"

// SetGiveUp changes how long a Shutdown waits for calls that it has cancelled.
func SetGiveUp(s *Server, d time.Duration) { s.giveUp = d }

// Waiting returns how many calls wait for their turn or for a readiness file.
func Waiting(s *Server) int { return int(s.gate.waiting.Load()) }

// Room returns how many bytes of requests may be taken in.
func Room(s *Server) int64 {
	s.bytes.mu.Lock()
	defer s.bytes.mu.Unlock()
	return s.bytes.left
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

package server

import "time"

// SetGiveUp changes how long a Shutdown waits for calls that it has cancelled.
func SetGiveUp(s *Server, d time.Duration) { s.giveUp = d }

// Waiting returns how many calls wait for their turn or for a readiness file.
func Waiting(s *Server) int { return int(s.gate.waiting.Load()) }

// Room returns how many bytes of requests may be taken in.
func Room(s *Server) int64 { return s.room.Load() }

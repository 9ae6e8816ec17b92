package server

import "github.com/embedcni/cni/thick/internal/wire"

// Stats are the numbers of calls and bytes that a Server has in hand at one moment.
type Stats struct {
	Adds, Dels CallStats
	Others     CallStats // CHECK, GC and STATUS together

	RequestBytes int64 // of the requests that are read, wait or run
	RequestLimit int64 // how many there may be: Limits.Requests
}

// CallStats are the calls that share slots: see Limits.Concurrent.
type CallStats struct {
	Running  int64 // with a slot
	Overtime int64 // that have lost it, because they take longer than five seconds
	// Waiting calls have no slot yet. They wait for one, for a file, for a DEL of their container,
	// or for the Planner. DELs of the queue do not count.
	Waiting int64
	Slots   int64 // one network alone gets half of them
}

// Stats returns the numbers of this moment.
func (s *Server) Stats() Stats {
	var all Stats
	s.bytes.mu.Lock()
	all.RequestBytes, all.RequestLimit = s.bytes.pool.total-s.bytes.pool.free, s.bytes.pool.total
	s.bytes.mu.Unlock()
	g := s.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	of := func(verbs string) CallStats {
		c := g.classes[verbs]
		return CallStats{Running: c.slots.total - c.slots.free, Overtime: c.late, Waiting: g.places.used[c.kind], Slots: c.slots.total}
	}
	all.Adds, all.Dels, all.Others = of(wire.Add), of(wire.Del), of(otherVerbs)
	return all
}

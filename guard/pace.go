package guard

import (
	"slices"
	"time"
)

// Times of a guard.
const (
	// quiet is the time without an announcement after which the containers are looked at,
	// and patience the time from the first one after which they are looked at although
	// others still come: a script that loads a firewall is a process for each rule.
	quiet    = 100 * time.Millisecond
	patience = 300 * time.Millisecond

	// A look is owed a rest of restFor times the time that it took, so that looking takes a
	// fifth of one processor at most. Up to mostOwed of the rest may be postponed, because
	// the next loss seldom follows at once, and its traffic is waiting. Each look is followed by a rest
	// of shortestRest at least. After looks that failed the rest doubles, up to longestRest.
	restFor      = 4
	mostOwed     = time.Second
	shortestRest = 200 * time.Millisecond
	longestRest  = time.Minute

	// A container whose repair failed is looked at again after firstRetry, doubled with
	// each failure up to lastRetry; if another call works on it up to lastBusy, because its
	// traffic should not wait as long again.
	firstRetry = 50 * time.Millisecond
	lastRetry  = time.Minute
	lastBusy   = time.Second
)

// pace decides when to look, and at which containers. It has no clock and no goroutine.
type pace struct {
	first, last time.Time // of the announcements that come close together; zero: none came

	whole    bool // all containers are to be looked at
	suspects map[string]*suspect
	rest     time.Time // no look before
	ended    time.Time // the last look
	owed     time.Duration
	failures int // of looks, in a row
}

// suspect is a container to look at.
type suspect struct {
	failures int // in a row
	at       time.Time
	told     string // the last failure that was reported
}

func newPace() *pace {
	return &pace{suspects: make(map[string]*suspect), whole: true}
}

// hear takes in that something may have been lost.
func (p *pace) hear(now time.Time) {
	if p.first.IsZero() {
		p.first = now
	}
	p.last = now
}

// settled returns the time at which the announcements are followed up, or zero.
func (p *pace) settled() time.Time {
	if p.first.IsZero() {
		return time.Time{}
	}
	return earlier(p.first.Add(patience), p.last.Add(quiet))
}

// earlier returns the earlier time. A zero time is none.
func earlier(a, b time.Time) time.Time {
	if b.IsZero() || !a.IsZero() && a.Before(b) {
		return a
	}
	return b
}

// due returns whether it is time to look at all containers, or else the suspects to look
// at. If there is nothing to do, next is when to ask again; zero: after the next event.
func (p *pace) due(now time.Time) (whole bool, ids []string, next time.Time) {
	if at := p.settled(); !at.IsZero() && !now.Before(at) {
		p.whole, p.first = true, time.Time{}
	}
	if p.whole && !now.Before(p.rest) {
		p.whole = false
		return true, nil, next
	}
	next = p.settled()
	if p.whole {
		next = earlier(next, p.rest)
	}
	for id, s := range p.suspects {
		switch {
		case s.at.IsZero():
		case now.Before(s.at) || now.Before(p.rest):
			next = earlier(next, latest(s.at, p.rest))
		default:
			ids = append(ids, id)
			s.at = time.Time{}
		}
	}
	slices.Sort(ids)
	return false, ids, next
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// looked notes that a look has ended. With an error, all containers are looked at later.
func (p *pace) looked(now time.Time, took time.Duration, err error) {
	if !p.ended.IsZero() {
		p.owed = max(p.owed-(now.Sub(p.ended)-took), 0)
	}
	p.owed += restFor * took
	p.ended = now
	rest := max(p.owed-mostOwed, shortestRest)
	p.failures++
	if err == nil {
		p.failures = 0
	} else {
		p.whole = true
		rest = min(max(rest, shortestRest<<min(p.failures, 12)), longestRest)
	}
	p.rest = now.Add(rest)
}

// retry has a container looked at again after a pause that doubles, up to the longest. It
// returns the number of failures in a row, and reports whether this one is another one than
// that before.
func (p *pace) retry(now time.Time, id string, longest time.Duration, why string) (failures int, news bool) {
	s := p.suspects[id]
	if s == nil {
		s = &suspect{}
		p.suspects[id] = s
	}
	s.at = now.Add(min(firstRetry<<min(s.failures, 12), longest))
	s.failures++
	news, s.told = s.told != why, why
	return s.failures, news
}

// hasFailed reports whether the last repair of a container has failed.
func (p *pace) hasFailed(id string) bool { return p.suspects[id] != nil }

// settle notes that nothing is left to do for a container.
func (p *pace) settle(id string) { delete(p.suspects, id) }

package guard

import "time"

// Times of a guard.
const (
	// quiet is the time without an announcement after which the containers are looked at,
	// and patience the time from the first one after which they are looked at although
	// others still come: a script that loads a firewall is a process for each rule.
	quiet    = 100 * time.Millisecond
	patience = 300 * time.Millisecond

	// A look is followed by a rest of restFor times the time that it took, so that looking
	// takes a fifth of one processor at most, and of shortestRest at least. After looks that
	// failed the rest doubles, up to longestRest.
	restFor      = 4
	shortestRest = 200 * time.Millisecond
	longestRest  = time.Minute

	// After a repair that failed the containers are looked at again after firstRetry, doubled
	// with each failure of the container up to lastRetry; if another call works on it up to
	// lastBusy, because its traffic should not wait as long again.
	firstRetry = 50 * time.Millisecond
	lastRetry  = time.Minute
	lastBusy   = time.Second
)

// pace decides when to look. It has no clock and no goroutine.
type pace struct {
	first, last time.Time // of the announcements that come close together; zero: none came
	again       time.Time // a look is wanted then, whatever is announced; zero: none

	rest     time.Time // no look before
	failures int       // of looks, in a row
}

// hear takes in that something may have been lost.
func (p *pace) hear(now time.Time) {
	if p.first.IsZero() {
		p.first = now
	}
	p.last = now
}

// due returns the time of the next look; zero: after the next event.
func (p *pace) due() (at time.Time) {
	if !p.first.IsZero() {
		at = earlier(p.first.Add(patience), p.last.Add(quiet))
	}
	if at = earlier(at, p.again); !at.IsZero() && at.Before(p.rest) {
		at = p.rest
	}
	return at
}

// earlier returns the earlier time. A zero time is none.
func earlier(a, b time.Time) time.Time {
	if b.IsZero() || !a.IsZero() && a.Before(b) {
		return a
	}
	return b
}

// look notes that a look begins, which follows up all that was heard.
func (p *pace) look() { p.first, p.again = time.Time{}, time.Time{} }

// looked notes that a look has ended. With an error, another one follows.
func (p *pace) looked(now time.Time, took time.Duration, err error) {
	rest := max(restFor*took, shortestRest)
	p.failures++
	if err == nil {
		p.failures = 0
	} else {
		p.again = now
		rest = min(max(rest, shortestRest<<min(p.failures, 12)), longestRest)
	}
	p.rest = now.Add(rest)
}

// retry has the containers looked at again after a failure, the nth in a row, after a pause
// that doubles, up to the longest.
func (p *pace) retry(now time.Time, n int, longest time.Duration) {
	p.again = earlier(p.again, now.Add(min(firstRetry<<min(n-1, 12), longest)))
}

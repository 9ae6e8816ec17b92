package guard

import (
	"maps"
	"slices"
	"time"
)

// Times of the guard.
const (
	// quiet is the time without a sign after which the containers are looked at, and
	// patience the time from the first sign after which they are looked at although
	// signs still come: the ports of a bridge go one after the other.
	quiet    = 20 * time.Millisecond
	patience = 100 * time.Millisecond

	// These are the times for changes of rules. A script that loads a firewall is a
	// process for each rule.
	quietRules    = 100 * time.Millisecond
	patienceRules = 300 * time.Millisecond

	// A look is owed a rest of looksRest times the time that it took, so that looking
	// takes a fifth of one processor at most. Up to mostOwed it may be taken later: what
	// is lost next is seldom lost at once, and has traffic waiting. Looks are followed
	// by a rest of shortestRest at least. After looks that failed the rest doubles, up to
	// longestRest.
	looksRest    = 4
	mostOwed     = 2 * time.Second
	shortestRest = 200 * time.Millisecond
	longestRest  = time.Minute

	// A repair that failed is repeated after firstRetry, doubled with each failure up
	// to lastRetry.
	firstRetry = 50 * time.Millisecond
	lastRetry  = time.Minute

	// lastBusy is the longest pause while another call works on a container: when that
	// ends, its traffic should not wait as long again.
	lastBusy = time.Second

	// mostSigns is the number of signs from which one look at all containers is
	// cheaper than following each of them.
	mostSigns = 100_000
)

// Core decides what to look at, and when. It is not safe for concurrent use.
type Core struct {
	Index   Index
	classes Class

	links map[int]Link // as last announced
	ports map[int]Port // the interfaces that are on a bridge, as last announced
	// Signs that were not followed up yet, and those that Gather has taken of them, for Due
	// to follow up.
	signs, gathered map[Sign]struct{}
	// Interfaces of containers that appeared, and those that Gather has taken of them. They
	// matter to containers that differ.
	appeared, gatheredNew map[Sign]struct{}
	losses                burst  // announcements that ask for a look, except those of rules
	changes               burst  // of rules
	changed               bool   // Gather has taken changes
	by                    string // the process that made the last of them

	whole    bool // all containers are to be looked at
	suspects map[string]*suspect
	rest     time.Time // no look before
	owed     time.Duration
	looked   time.Time // the last look ended
	failures int       // of looks, in a row

	items map[string]map[Item]*history // by container
}

// burst is the time of announcements that come close together.
type burst struct{ first, last time.Time } // zero: there was none

func (b *burst) add(now time.Time) {
	if b.first.IsZero() {
		b.first = now
	}
	b.last = now
}

// settled returns the time at which the burst is followed up, or zero.
func (b *burst) settled(quiet, patience time.Duration) time.Time {
	if b.first.IsZero() {
		return time.Time{}
	}
	return earlier(b.first.Add(patience), b.last.Add(quiet))
}

// earlier returns the earlier time. A zero time is none.
func earlier(a, b time.Time) time.Time {
	if b.IsZero() || !a.IsZero() && a.Before(b) {
		return a
	}
	return b
}

// suspect is a container to look at.
type suspect struct {
	failures int       // of its repair, in a row
	at       time.Time // when to look; zero: it is being repaired
}

// NewCore returns a Core that guards these classes. It wants to look at all containers
// at once.
func NewCore(classes Class) *Core {
	return &Core{
		classes: classes, links: make(map[int]Link), ports: make(map[int]Port),
		signs: make(map[Sign]struct{}), gathered: make(map[Sign]struct{}),
		appeared: make(map[Sign]struct{}), gatheredNew: make(map[Sign]struct{}),
		suspects: make(map[string]*suspect), items: make(map[string]map[Item]*history), whole: true,
	}
}

// Links replaces the known state of all interfaces, and of the ports of bridges. It is for
// the begin, and after announcements were lost.
func (c *Core) Links(all []Link, ports []Port) {
	c.links, c.ports = make(map[int]Link, len(all)), make(map[int]Port, len(ports))
	for _, l := range all {
		c.links[l.Index] = l
	}
	for _, p := range ports {
		if c.links[p.Interface].Master != 0 {
			c.ports[p.Interface] = c.ports[p.Interface].with(p)
		}
	}
}

// By returns the process that was the last to change rules, or "".
func (c *Core) By() string { return c.by }

// SettledAt returns the time at which the present announcements are followed up, or zero.
func (c *Core) SettledAt() time.Time {
	return earlier(c.losses.settled(quiet, patience), c.changes.settled(quietRules, patienceRules))
}

// Ripe reports whether it is time to look because of announcements.
func (c *Core) Ripe(now time.Time) bool {
	return isDue(c.SettledAt(), now) || c.whole && !now.Before(c.rest)
}

func isDue(at, now time.Time) bool { return !at.IsZero() && !now.Before(at) }

// Gather takes the signs that are due, for Due to follow, and reports whether to update
// Index before. Later signs wait for the next Gather. The Index is older than they are: it
// lacks containers that were attached since, and still has those that are being removed.
func (c *Core) Gather(now time.Time) bool {
	ripe := c.Ripe(now)
	if isDue(c.losses.settled(quiet, patience), now) {
		maps.Copy(c.gathered, c.signs)
		maps.Copy(c.gatheredNew, c.appeared)
		clear(c.signs)
		clear(c.appeared)
		c.losses = burst{}
	}
	if isDue(c.changes.settled(quietRules, patienceRules), now) {
		c.changed, c.changes = true, burst{}
	}
	return ripe
}

// Task is a look to take now.
type Task struct {
	Whole      bool     // at all containers
	Containers []string // else at these, in order
}

// Due returns the look to take now, if there is one, and else the time of the next, which
// is zero if nothing is to be done until the next event. It follows the signs that Gather
// has taken.
func (c *Core) Due(now time.Time) (t Task, due bool, next time.Time) {
	c.follow(now)
	if now.Before(c.rest) {
		return t, false, c.next()
	}
	t.Whole = c.whole
	for id, s := range c.suspects {
		if t.Whole || !s.at.IsZero() && !now.Before(s.at) {
			t.Containers = append(t.Containers, id)
			s.at = time.Time{}
		}
	}
	if t.Whole {
		c.whole, t.Containers = false, nil
		return t, true, time.Time{}
	}
	if len(t.Containers) > 0 {
		slices.Sort(t.Containers)
		return t, true, time.Time{}
	}
	return t, false, c.next()
}

// next returns the time of the next step, or zero.
func (c *Core) next() (at time.Time) {
	look := func(t time.Time) {
		if t.Before(c.rest) {
			t = c.rest
		}
		at = earlier(at, t)
	}
	at = c.SettledAt()
	if c.whole {
		look(c.rest)
	}
	for _, s := range c.suspects {
		if !s.at.IsZero() {
			look(s.at)
		}
	}
	return at
}

// follow turns the gathered signs into containers to look at.
func (c *Core) follow(now time.Time) {
	c.whole = c.whole || c.changed && c.Index.Len() > 0
	if !c.whole {
		found := make(map[string]struct{})
		for s := range c.gathered {
			c.Index.Find(s, found)
		}
		for id := range found {
			c.Suspect(now, id)
		}
		clear(found)
		for s := range c.gatheredNew {
			c.Index.Find(s, found)
		}
		for id := range found {
			if c.items[id] != nil {
				c.Suspect(now, id)
			}
		}
	}
	clear(c.gathered)
	clear(c.gatheredNew)
	c.changed = false
}

// Suspect has a container looked at as soon as possible.
func (c *Core) Suspect(now time.Time, id string) {
	s := c.suspects[id]
	if s == nil {
		s = &suspect{}
		c.suspects[id] = s
	}
	s.at = now
}

// Looked notes that a look has ended. With an error, all containers are looked at later.
func (c *Core) Looked(now time.Time, took time.Duration, err error) {
	if !c.looked.IsZero() {
		c.owed = max(c.owed-(now.Sub(c.looked)-took), 0)
	}
	c.owed += looksRest * took
	c.looked = now
	rest := max(c.owed-mostOwed, shortestRest)
	if err == nil {
		c.failures = 0
	} else {
		c.failures++
		c.whole = true
		rest = min(max(rest, shortestRest<<min(c.failures, 12)), longestRest)
	}
	c.rest = now.Add(rest)
}

// Settled notes that nothing is left to do for a container after a look or a repair.
// With an error, it is looked at again later.
func (c *Core) Settled(now time.Time, id string, err error) {
	s := c.suspects[id]
	if err == nil {
		if s != nil && s.at.IsZero() {
			delete(c.suspects, id)
		} else if s != nil {
			s.failures = 0
		}
		return
	}
	c.retry(now, id, lastRetry)
}

// Busy notes that another call works on a container. It is looked at again later.
func (c *Core) Busy(now time.Time, id string) { c.retry(now, id, lastBusy) }

// retry has a container looked at again after a pause that doubles, up to the longest.
func (c *Core) retry(now time.Time, id string, longest time.Duration) {
	s := c.suspects[id]
	if s == nil {
		s = &suspect{}
		c.suspects[id] = s
	}
	again := now.Add(min(firstRetry<<min(s.failures, 12), longest))
	s.failures++
	if s.at.IsZero() || s.at.After(again) {
		s.at = again
	}
}

// Failures returns how often looks at the container and its repairs have failed in a row.
func (c *Core) Failures(id string) int {
	if s := c.suspects[id]; s != nil {
		return s.failures
	}
	return 0
}

// Fresh returns those of the containers whose last repair has not failed, and the others.
func (c *Core) Fresh(ids []string) (fresh, failed []string) {
	for _, id := range ids {
		if c.Failures(id) > 0 {
			failed = append(failed, id)
		} else {
			fresh = append(fresh, id)
		}
	}
	return fresh, failed
}

// Forget drops a container that is on record no more.
func (c *Core) Forget(id string) {
	c.Index.Delete(id)
	delete(c.suspects, id)
	delete(c.items, id)
}

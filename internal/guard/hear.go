package guard

import "time"

// Take takes an event in.
func (c *Core) Take(now time.Time, e Event) {
	switch {
	case e.Lost != 0:
		if e.Lost&c.classes != 0 {
			c.suspectAll(now)
		}
	case e.Link != nil:
		c.hearLink(now, *e.Link)
	case e.Port != nil:
		c.hearPort(now, *e.Port)
	case e.Address != nil:
		c.hearOf(now, Links, e.Address.Interface)
	case e.Queue != nil:
		c.hearOf(now, Links, e.Queue.Interface)
	case e.Route != nil:
		c.hearRoute(now, *e.Route)
	case e.Rules != nil:
		c.hearRules(now, e.Rules)
	case e.Holds:
		c.suspectAll(now)
	}
}

// hearLink suspects the containers of an interface that has lost something: it is gone,
// down, renamed, or no longer a port of its bridge. One that appears may be the bridge
// that containers lack, so that their ports can be repaired now.
func (c *Core) hearLink(now time.Time, l Link) {
	before, known := c.links[l.Index]
	if l.Gone {
		delete(c.links, l.Index)
	} else {
		c.links[l.Index] = l
	}
	if l.Gone || before.Master != l.Master {
		delete(c.ports, l.Index)
	}
	if !known {
		before = Link{Name: l.Name}
	}
	lost := l.Gone || before.Up && !l.Up || before.Name != l.Name ||
		before.Master != 0 && before.Master != l.Master
	if lost {
		c.suspect(now, OfLink(before.Name))
	}
	if !l.Gone && (!known || before.Name != l.Name) && c.classes&Links != 0 && c.Index.Knows(OfLink(l.Name)) {
		c.appeared[OfLink(l.Name)] = struct{}{}
		c.losses.add(now)
	}
}

// hearPort suspects the containers of a port that has lost a mode or a VLAN.
func (c *Core) hearPort(now time.Time, p Port) {
	l := c.links[p.Interface]
	if l.Master == 0 {
		return // it has left the bridge, or is the bridge itself
	}
	before := c.ports[p.Interface]
	p = before.with(p)
	c.ports[p.Interface] = p
	if before.hasLost(p, c.links[l.Master].DefaultVLAN) {
		c.suspect(now, OfLink(l.Name))
	}
}

// hearOf suspects the containers of an interface with which something has happened.
func (c *Core) hearOf(now time.Time, class Class, index int) {
	if l, ok := c.links[index]; ok && c.classes&class != 0 {
		c.note(now, OfLink(l.Name))
	}
}

func (c *Core) hearRoute(now time.Time, r Route) {
	if r.Dst.IsSingleIP() {
		c.suspect(now, OfAddress(r.Dst.Addr()))
		return
	}
	c.hearOf(now, Routes, r.Interface)
}

// hearRules suspects all containers, whatever has changed: what the rules of others do to a
// container's cannot be told from an announcement.
func (c *Core) hearRules(now time.Time, r *Changed) {
	if c.classes&Rules != 0 {
		c.by = r.By
		c.changes.add(now)
	}
}

// suspect notes a sign of a class that is guarded.
func (c *Core) suspect(now time.Time, s Sign) {
	if s.Kind.class()&c.classes != 0 {
		c.note(now, s)
	}
}

func (c *Core) note(now time.Time, s Sign) {
	if len(c.signs) < mostSigns {
		c.signs[s] = struct{}{}
	} else {
		c.whole = true
	}
	c.losses.add(now)
}

func (c *Core) suspectAll(now time.Time) {
	c.whole = true
	c.losses.add(now)
}

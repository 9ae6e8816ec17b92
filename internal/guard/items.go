package guard

import (
	"slices"
	"time"
)

// contestedAt losses of one thing within contestedIn mean that somebody wants it gone.
const (
	contestedAt = 3
	contestedIn = time.Minute
)

// Item identifies a part of a container's network.
type Item struct {
	Container, Network, IfName string
	Plugin, Kind, Object       string
}

// history is what happened to an item.
type history struct {
	lost      []time.Time // when it was found lost, each time after it had been whole
	open      bool        // it is lost now
	contested bool
	told      Decision // the last that was reported, while open
}

// Decision says why a part of a container is repaired, or left.
type Decision string

const (
	Repair    Decision = "repair"
	Contested Decision = "contested" // undone too often: somebody wants it gone
	Held      Decision = "held"
	Different Decision = "different" // not missing, or not repairable
	Unchosen  Decision = "unchosen"  // of a class that is not guarded
)

// Found is a difference as a comparison found it.
type Found struct {
	Item
	Class   Class
	Fixable bool
	Held    bool
	Detail  any // the caller's, for its reports
}

// Want decides about a difference that was found. First reports whether the decision is
// news: of a thing that stays as it is, it is reported once.
func (c *Core) Want(now time.Time, f Found) (d Decision, first bool) {
	h := c.history(f.Item)
	if !h.open {
		h.open, h.told = true, ""
		h.lost = append(recent(h.lost, now), now)
	}
	switch {
	case f.Class&c.classes == 0:
		d = Unchosen
	case f.Held:
		d = Held
	case !f.Fixable:
		d = Different
	case h.contested || len(h.lost) >= contestedAt:
		h.contested = true
		d = Contested
	default:
		d = Repair
	}
	first = h.told != d
	h.told = d
	return d, first
}

func (c *Core) history(i Item) *history {
	if c.items[i.Container] == nil {
		c.items[i.Container] = make(map[Item]*history)
	}
	h := c.items[i.Container][i]
	if h == nil {
		h = &history{}
		c.items[i.Container][i] = h
	}
	return h
}

// recent drops the losses that count no more.
func recent(lost []time.Time, now time.Time) []time.Time {
	return slices.DeleteFunc(lost, func(t time.Time) bool { return now.Sub(t) > contestedIn })
}

// Compared notes all differences that a comparison of a container has found. Whatever
// else was lost is whole again, and no longer contested: somebody has put it back.
func (c *Core) Compared(now time.Time, id string, found []Item) {
	lost := make(map[Item]bool, len(found))
	for _, i := range found {
		lost[i] = true
	}
	for i, h := range c.items[id] {
		if lost[i] {
			continue
		}
		h.open, h.told, h.contested = false, "", false
		if h.lost = recent(h.lost, now); len(h.lost) == 0 {
			delete(c.items[id], i)
		}
	}
	if len(c.items[id]) == 0 {
		delete(c.items, id)
	}
}

// Made notes that one item was made again.
func (c *Core) Made(now time.Time, i Item) {
	if h := c.items[i.Container][i]; h != nil {
		h.open, h.told, h.lost = false, "", recent(h.lost, now)
	}
}

// Differing returns the containers that had differences at the last comparison.
func (c *Core) Differing() (ids []string) {
	for id := range c.items {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// ContestedItems returns what is left because it was undone too often.
func (c *Core) ContestedItems() (all []Item) {
	for _, items := range c.items {
		for i, h := range items {
			if h.contested {
				all = append(all, i)
			}
		}
	}
	return all
}

package guard

import (
	"slices"
	"time"

	"github.com/embedcni/cni"
)

// contestedAt losses of one part within contestedIn mean that somebody wants it gone.
const (
	contestedAt = 3
	contestedIn = time.Minute
)

// item identifies a part of a container's network.
type item struct {
	network, ifName, plugin string
	kind                    string
	object                  string
}

func itemOf(d cni.Difference) item { return item{d.Network, d.IfName, d.Plugin, d.Kind, d.Object} }

// history is what happened to a part.
type history struct {
	lost []time.Time // when it was found lost, each time after it had been whole
	open bool        // it is lost now
	told Kind        // the last that was reported, while open
	left bool        // it was lost too often
}

// whole notes that the part is there again.
func (h *history) whole(now time.Time) {
	h.open, h.told = false, ""
	h.lost = slices.DeleteFunc(h.lost, func(t time.Time) bool { return now.Sub(t) > contestedIn })
}

// suspect is a container of which parts were lost lately, or that could not be compared or
// repaired.
type suspect struct {
	parts    map[item]*history
	failures int    // in a row
	told     string // the last failure
}

// suspects are containers by their IDs.
type suspects map[string]*suspect

func (all suspects) of(id string) *suspect {
	if all[id] == nil {
		all[id] = &suspect{parts: make(map[item]*history)}
	}
	return all[id]
}

func (s *suspect) part(d cni.Difference) *history {
	i := itemOf(d)
	if s.parts[i] == nil {
		s.parts[i] = &history{}
	}
	return s.parts[i]
}

// decide returns what to do about a difference: Repaired for a repair, another Kind to
// leave it, or nothing if its class is not guarded. News reports whether that has to be
// reported: of a part that stays as it is, it is reported once.
func (all suspects) decide(now time.Time, id string, d cni.Difference, classes Class) (what Kind, news bool) {
	if classOf(d)&classes == 0 {
		return "", false
	}
	h := all.of(id).part(d)
	if !h.open {
		h.whole(now) // until now
		h.open, h.lost = true, append(h.lost, now)
	}
	h.left = h.left || len(h.lost) >= contestedAt
	switch {
	case !d.Repairable:
		what = Left
	case h.left:
		what = Contested
	default:
		return Repaired, false
	}
	return what, all.note(id, d, what)
}

// note reports whether it is news that a part is left.
func (all suspects) note(id string, d cni.Difference, what Kind) bool {
	h := all.of(id).part(d)
	news := h.told != what
	h.open, h.told = true, what
	return news
}

// compared notes all differences that a comparison of a container has found. Whatever
// else was lost is whole again, and no longer contested: somebody has put it back.
func (all suspects) compared(now time.Time, id string, found []cni.Difference) {
	s := all.of(id)
	for i, h := range s.parts {
		if slices.ContainsFunc(found, func(d cni.Difference) bool { return itemOf(d) == i }) {
			continue
		}
		h.left = false
		if h.whole(now); len(h.lost) == 0 {
			delete(s.parts, i)
		}
	}
	if len(s.parts) == 0 && s.failures == 0 {
		delete(all, id)
	}
}

// settled notes what a comparison has found, of which nothing is to be done here.
func (all suspects) settled(now time.Time, id string, left []cni.Difference) {
	all.of(id).failures = 0
	all.of(id).told = ""
	all.compared(now, id, left)
}

// areOpen reports whether something is lost now.
func (all suspects) areOpen() bool {
	for _, s := range all {
		for _, h := range s.parts {
			if h.open {
				return true
			}
		}
	}
	return false
}

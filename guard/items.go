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

// items are the parts of containers that were lost lately, by container.
type items map[string]map[item]*history

// decide returns what to do about a difference: Repaired for a repair, another Kind to
// leave it, or nothing if its class is not guarded. News reports whether that has to be
// reported: of a part that stays as it is, it is reported once.
func (all items) decide(now time.Time, id string, d cni.Difference, classes Class) (what Kind, news bool) {
	if classOf(d)&classes == 0 {
		return "", false
	}
	h := all.of(id, itemOf(d))
	if !h.open {
		h.open, h.told = true, ""
		h.lost = append(recent(h.lost, now), now)
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
func (all items) note(id string, d cni.Difference, what Kind) bool {
	h := all.of(id, itemOf(d))
	news := h.told != what
	h.open, h.told = true, what
	return news
}

func (all items) of(id string, i item) *history {
	if all[id] == nil {
		all[id] = make(map[item]*history)
	}
	if all[id][i] == nil {
		all[id][i] = &history{}
	}
	return all[id][i]
}

// recent drops the losses that count no more.
func recent(lost []time.Time, now time.Time) []time.Time {
	return slices.DeleteFunc(lost, func(t time.Time) bool { return now.Sub(t) > contestedIn })
}

// compared notes all differences that a comparison of a container has found. Whatever
// else was lost is whole again, and no longer contested: somebody has put it back.
func (all items) compared(now time.Time, id string, found []cni.Difference) {
	lost := make(map[item]bool, len(found))
	for _, d := range found {
		lost[itemOf(d)] = true
	}
	for i, h := range all[id] {
		if lost[i] {
			continue
		}
		h.open, h.told, h.left = false, "", false
		if h.lost = recent(h.lost, now); len(h.lost) == 0 {
			delete(all[id], i)
		}
	}
	if len(all[id]) == 0 {
		delete(all, id)
	}
}

// made notes that one part was made again.
func (all items) made(now time.Time, id string, d cni.Difference) {
	if h := all[id][itemOf(d)]; h != nil {
		h.open, h.told, h.lost = false, "", recent(h.lost, now)
	}
}

// areOpen reports whether something is lost now.
func (all items) areOpen() bool {
	for _, its := range all {
		for _, h := range its {
			if h.open {
				return true
			}
		}
	}
	return false
}

package record

import (
	"fmt"
	"slices"

	"github.com/embedcni/cni/internal/kernel/joined"
)

// Versions before 2027 had pools, which made containers ahead of time under IDs of their
// own ("warm-…"). A record with Warm is such a container that nobody has yet. One with
// PluginID was taken by a caller; its plugins still know it by the pool's ID. Both are
// read and removed; neither is made. This file may go in 2028.

// takenIDs returns the IDs of containers that were made ahead of time and have
// since been taken under another ID.
func takenIDs(found []Found) map[PluginID]bool {
	taken := map[PluginID]bool{}
	for _, f := range found {
		if f.Record.PluginID != "" {
			taken[f.Record.PluginID] = true
		}
	}
	return taken
}

// isTaken reports whether a container was made ahead of time, and has since been taken.
func (f Found) isTaken(taken map[PluginID]bool) bool {
	return f.Record.Warm && taken[f.Record.Plugins()]
}

// WithoutTaken omits the records of containers that have since been taken under another ID.
func WithoutTaken(found []Found) []Found {
	taken := takenIDs(found)
	return slices.DeleteFunc(slices.Clone(found), func(f Found) bool { return f.isTaken(taken) })
}

// Orphans removes from the list the containers that the pool of a live process
// has made ahead of time: that pool removes them, unless a removal has failed.
// alive reports whether the process of a record lives.
//
// stale are containers that were taken under another ID by a process that was
// killed between two steps: only their records are left. If a record names no
// container, it may belong to any of them; then all stay, with an error.
func Orphans(found []Found, alive func(*Record) (bool, error)) (rest []Found, stale []ID) {
	taken := takenIDs(found)
	nameless := slices.IndexFunc(found, func(f Found) bool { return f.Record.ContainerID == "" })
	for _, f := range found {
		if !f.Record.Warm {
			rest = append(rest, f)
			continue
		}
		lives, err := alive(f.Record)
		switch {
		case err != nil:
			f.Err = joined.Errors(f.Err, err)
		case lives && !failed(f.Record):
			continue
		case f.Err != nil:
		case f.isTaken(taken):
			stale = append(stale, f.Record.ContainerID)
			continue
		case nameless >= 0:
			f.Err = fmt.Errorf("it may be another container's by now: %v", found[nameless].Err)
		}
		rest = append(rest, f)
	}
	return rest, stale
}

// failed reports whether removing the container has failed.
func failed(rec *Record) bool {
	return slices.ContainsFunc(rec.Attachments, func(n Attachment) bool { return n.Failures > 0 })
}

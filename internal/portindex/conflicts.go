package portindex

import (
	"slices"

	"github.com/embedcni/cni/internal/ports"
	"github.com/embedcni/cni/internal/record"
)

// Conflict is a wanted port that another container has.
type Conflict struct {
	Wanted ports.Claim
	Holder
}

// Conflicts returns a Conflict for each wanted port that another container on record
// has, on the host of rec and since the host was booted. A container has its ports
// until it is removed, even if it is dead: its rules still forward them. Of the
// container's own attachments, the first forwards.
func (x *Index) Conflicts(rec *record.Record, wanted []ports.Claim) (found []Conflict, err error) {
	holders, err := x.Find(wanted)
	if err != nil {
		return nil, err
	}
	return conflicts(rec, wanted, holders), nil
}

// Knows reports whether a container with one of these ports is on record, of any host and
// boot, by the ID that plugins know. If the records cannot be read, it may be.
func (x *Index) Knows(id string, wanted []ports.Claim) bool {
	holders, err := x.Find(wanted)
	return err != nil || slices.ContainsFunc(holders, func(h Holder) bool { return string(h.Record.Plugins()) == id })
}

// conflicts is Conflicts for holders that were found.
func conflicts(rec *record.Record, wanted []ports.Claim, holders []Holder) (found []Conflict) {
	others := slices.DeleteFunc(slices.Clone(holders), func(h Holder) bool {
		return h.Record.ContainerID == rec.ContainerID || !isOf(h.Record, rec)
	})
	for _, c := range wanted {
		if i := slices.IndexFunc(others, func(h Holder) bool { return h.Claim.Overlaps(c) }); i >= 0 {
			found = append(found, Conflict{c, others[i]})
		}
	}
	return found
}

// isOf reports whether a record is of the same host, and of the same boot, as another.
func isOf(holder, rec *record.Record) bool {
	return holder.Boot == rec.Boot && (holder.Host == "" || holder.Host == rec.Host)
}

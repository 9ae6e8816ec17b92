package cni

import (
	"slices"

	"github.com/embedcni/cni/internal/record"
)

// otherOwners returns the other owners of the attachments in the records, in order.
// Without an owner of its own an attachment is nobody's in particular.
func otherOwners(found []record.Found, owner string) (others []string) {
	add := func(o string) {
		if o != "" && o != owner && !slices.Contains(others, o) {
			others = append(others, o)
		}
	}
	for _, f := range found {
		if len(f.Record.Attachments) == 0 {
			add(f.Record.Owner)
		}
		for i := range f.Record.Attachments {
			if n := &f.Record.Attachments[i]; n.State != record.Deleted {
				add(f.Record.OwnerOf(n))
			}
		}
	}
	slices.Sort(others)
	return others
}

// noteOthers reports that there are attachments of other owners, if nobody has chosen
// this one's name: the program may have had another name when it made them.
func (s *snapshot) noteOthers(report *Report, others []string) {
	if s.ownerNamed || len(others) == 0 {
		return
	}
	report.OtherOwners = others
	s.logger.Warn("attachments of other owners are left alone; the owner is the name of the executable, unless WithOwner sets it",
		"owner", s.owner, "others", others)
}

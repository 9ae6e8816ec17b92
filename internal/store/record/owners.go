package record

import (
	"slices"
	"time"
)

// OwnerOf returns the owner of an attachment: GC and Recover touch only their
// own. The record's owner is the owner of its first attachment. Earlier versions
// look at the record's owner only.
func (r *Record) OwnerOf(n *Attachment) string {
	if n.Owner != "" {
		return n.Owner
	}
	return r.Owner
}

// Owned reports whether the owner has an attachment in the record. A record
// without attachments belongs to the record's owner.
func (r *Record) Owned(owner string) bool {
	if r.IsEmpty() {
		return r.Owner == owner
	}
	return r.Has(func(n *Attachment) bool { return r.OwnerOf(n) == owner })
}

// IsEmpty reports whether no attachments are in the record: it is of a namespace that was
// made for the container.
func (r *Record) IsEmpty() bool { return !r.Has(func(*Attachment) bool { return true }) }

// IsOnly reports whether no attachments of another owner are in the record.
func (r *Record) IsOnly(owner string) bool {
	return !r.Has(func(n *Attachment) bool { return r.OwnerOf(n) != owner })
}

// Shared reports whether attachments of more than one owner are in the record.
func (r *Record) Shared() bool { return !r.IsOnly(r.Owner) }

// IsUnsettled reports whether attachments of an owner are in the record whose removal
// has begun.
func (r *Record) IsUnsettled(owner string) bool {
	return r.Has(func(n *Attachment) bool { return r.OwnerOf(n) == owner && (n.State == Deleting || n.Failures > 0) })
}

// HasFailed reports whether the removal of an owner's attachment has failed.
func (r *Record) HasFailed(owner string) bool {
	return r.Has(func(n *Attachment) bool { return r.OwnerOf(n) == owner && n.Failures > 0 })
}

// IsDue reports whether it is time to repeat a failed removal of an owner's attachment;
// see [Attachment.RetryIn].
func (r *Record) IsDue(owner string, now time.Time) bool {
	return r.Has(func(n *Attachment) bool { return r.OwnerOf(n) == owner && n.Failures > 0 && n.RetryIn(now) <= 0 })
}

// OtherOwners returns the owners of the attachments in the records, in order, but for
// one. Without an owner of its own an attachment is nobody's in particular.
func OtherOwners(found []Found, owner string) (others []string) {
	add := func(o string) {
		if o != "" && o != owner && !slices.Contains(others, o) {
			others = append(others, o)
		}
	}
	for _, f := range found {
		if len(f.Record.Attachments) == 0 {
			add(f.Record.Owner)
		}
		for n := range f.Record.Present() {
			add(f.Record.OwnerOf(n))
		}
	}
	slices.Sort(others)
	return others
}

package cni

import (
	"slices"

	"github.com/embedcni/cni/internal/footprint"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/record"
)

// siblings returns the container's other attachments that stay, from the record or,
// without a record, from libcni's cache.
func (a *attachment) siblings() ([]*attachment, error) {
	stays := func(ifName string) bool { return ifName != a.IfName && !a.op.removal.leaving[ifName] }
	var all []*attachment
	var err error
	if rec := a.op.Record; rec != nil && !a.op.Damaged {
		// Most attachments have none. The record then need not be parsed.
		if !slices.ContainsFunc(rec.Attachments, func(n record.Attachment) bool { return n.State != record.Deleted && stays(n.IfName) }) {
			return nil, nil
		}
		all, err = a.op.fromRecord(rec)
	} else {
		all, err = a.op.fromCache()
	}
	return slices.DeleteFunc(slices.Clone(all), func(b *attachment) bool { return !stays(b.IfName) }), err
}

// Siblings returns the addresses, owners and rules of the siblings.
func (a *attachment) Siblings() fwrules.Siblings {
	all, err := a.siblings()
	var described []*footprint.Attachment
	for _, b := range all {
		described = append(described, b.described())
	}
	s, rerr := footprint.Siblings(a.network.config.Name, described)
	s.Unknown = s.Unknown || err != nil
	if rerr != nil {
		a.op.logger.Warn("the rules of another attachment of the container are not known; rules that it may share stay",
			"container", a.op.ID, "network", a.network.config.Name, "error", rerr)
	}
	if a.op.Damaged {
		s.Addresses = append(s.Addresses, footprint.AddressesOf(a.op.Record.Attachments, a.op.removal.leaving)...)
	}
	return s
}

// fromCache returns the container's attachments in libcni's cache. It reads the cache
// once for each operation.
func (op *operation) fromCache() (all []*attachment, err error) {
	if op.removal.cached != nil {
		return *op.removal.cached, nil
	}
	if all, err = op.cachedBeside(nil); err != nil {
		return nil, err
	}
	for _, a := range all {
		a.partial = a.cached().Result()
	}
	op.removal.cached = &all
	return all, nil
}

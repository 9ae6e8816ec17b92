package cni

import (
	"encoding/json"
	"net/netip"
	"slices"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/claims"
	"github.com/embedcni/cni/internal/footprint"
	"github.com/embedcni/cni/internal/ipamdir"
	"github.com/embedcni/cni/internal/record"
)

func (s *snapshot) ledger() *record.Ledger { return s.Records.Ledger(s.owner) }

// notes is the owner's ledger, for notes about the container.
func (op *operation) notes() claims.Ledger {
	return claims.Ledger{Ledger: op.ledger(), Log: op.logger, Container: op.ID}
}

func (a *attachment) key() record.Key {
	return record.Key{ContainerID: record.PluginID(a.ContainerID), Network: a.network.config.Name, IfName: a.IfName}
}

// enter notes in the owner's ledger that attachments are about to be recorded. It
// reaches the disk before the record goes, see ledgerSafe: until then the record names
// them.
func (op *operation) enter(attachments []*attachment) {
	now := op.ledger().Now()
	var lines []record.Line
	for _, a := range attachments {
		if a.part.From > 0 {
			continue // it was entered when it was made ahead of time, under the same ID
		}
		a.claims.Restart(now)
		lines = append(lines, record.Line{Key: a.key(), Dirs: footprint.IPAMDirs(a.network.config), Time: now})
	}
	op.notes().Note(lines...)
}

// syncLedger begins to bring to the disk that attachments with addresses of
// host-local's were entered. DELs take longer, so that nobody waits for it.
func (op *operation) syncLedger(attachments []*attachment) {
	if op.removal.entered == nil && slices.ContainsFunc(attachments, func(a *attachment) bool { return len(footprint.IPAMDirs(a.network.config)) > 0 }) {
		op.removal.entered = op.ledger().Sync()
	}
}

// ledgerSafe waits until the ledger names the attachments whatever happens to the
// machine. A power cut can restore a reservation that was released, but not the record
// that named its holder.
func (op *operation) ledgerSafe(attachments []*attachment) {
	op.syncLedger(attachments)
	op.notes().Failed(op.removal.entered.Wait())
}

// enterGone notes that nothing is left of attachments.
func (op *operation) enterGone(attachments []*attachment) {
	var keys []record.Key
	for _, a := range attachments {
		keys = append(keys, a.key())
	}
	op.notes().NoteGone(keys)
}

// Claim is [caller.Reservations]'s. It is called with host-local's lock held.
func (a *attachment) Claim(dir string, addr netip.Addr) {
	a.claims.Add(addr)
	a.op.notes().Note(record.Line{Key: a.key(), Dirs: []string{dir}, Addresses: []netip.Addr{addr}})
}

// MayRelease is [caller.Reservations]'s.
func (a *attachment) MayRelease(id, ifName string, addr netip.Addr) bool {
	return a.garbage.MayRelease(a.network.config.Name, ipamdir.Reservation{ContainerID: id, IfName: ifName, Addr: addr})
}

var _ caller.Reservations = (*attachment)(nil)

// claimResult notes the addresses of a result, which an executable may have had
// reserved by another.
func (a *attachment) claimResult(result json.RawMessage) {
	claimed, _ := a.claims.All()
	if len(claimed) > 0 || len(footprint.IPAMDirs(a.network.config)) == 0 {
		return
	}
	if addrs := footprint.Addresses(result); len(addrs) > 0 {
		a.claims.Add(addrs...)
		a.op.notes().Note(record.Line{Key: a.key(), Addresses: addrs})
	}
}

// emptied decides whether an empty reservation is left of this attachment.
func (a *attachment) emptied(addresses []netip.Addr) func(ipamdir.Reservation) bool {
	judged := claims.Attachment{
		Ledger: a.op.notes(), Key: a.key(), Claims: &a.claims,
		Addresses: addresses, Answered: a.state == record.Added,
	}
	if rec := a.op.Record; rec != nil {
		if n := rec.Find(a.IfName); n != nil && n.Call <= 1 {
			judged.Recorded = rec.Since
		}
	}
	return judged.Judge()
}

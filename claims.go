package cni

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/claims"
	"github.com/embedcni/cni/internal/footprint"
	"github.com/embedcni/cni/internal/ipamdir"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/record"
)

func (s *snapshot) ledger() *record.Ledger { return s.Records.Ledger(s.owner) }

// notes returns the owner's ledger, for notes about the container.
func (op *operation) notes() claims.Ledger {
	return claims.Ledger{Ledger: op.ledger(), Log: op.logger, Container: op.ID}
}

func (a *attachment) key() record.Key {
	return record.Key{ContainerID: record.PluginID(a.ContainerID), Network: a.network.config.Name, IfName: a.IfName}
}

// enter notes in the owner's ledger that attachments are about to be recorded.
// The note must be on the disk before the record is deleted, see ledgerSafe;
// until then the record names the attachments.
func (op *operation) enter(attachments []*attachment) {
	now := op.ledger().Now()
	var lines []record.Line
	for _, a := range attachments {
		if a.part.From > 0 {
			continue // it was entered under the same ID when it was made ahead of time
		}
		a.claims.Restart(now)
		lines = append(lines, record.Line{Key: a.key(), Dirs: footprint.IPAMDirs(a.network.config), Time: now})
	}
	op.notes().Note(lines...)
}

// syncLedger begins to sync the entries of attachments with addresses of
// host-local's. Nobody waits for it, because DELs take longer.
func (op *operation) syncLedger(attachments []*attachment) {
	if op.removal.entered == nil && slices.ContainsFunc(attachments, func(a *attachment) bool { return len(footprint.IPAMDirs(a.network.config)) > 0 }) {
		op.removal.entered = op.ledger().Sync()
	}
}

// ledgerSafe waits until the entries in the ledger are on the disk. A power cut
// can restore a released reservation, but not the record that named its holder.
func (op *operation) ledgerSafe(attachments []*attachment) {
	op.syncLedger(attachments)
	op.notes().Failed(op.removal.entered.Wait())
}

// enterGone notes that attachments left nothing behind.
func (op *operation) enterGone(attachments []*attachment) {
	var keys []record.Key
	for _, a := range attachments {
		keys = append(keys, a.key())
	}
	op.notes().NoteGone(keys)
}

var _ caller.Record = (*attachment)(nil)

// Fact implements [caller.Record].
func (a *attachment) Fact(key string) json.RawMessage { return a.facts.Get(key) }

// Note implements [caller.Record].
func (a *attachment) Note(key string, value any) error {
	data, err := json.Marshal(value)
	if err == nil {
		err = a.Append(record.Entry{Facts: map[string]json.RawMessage{key: data}})
	}
	if err != nil {
		return fmt.Errorf("note %s: %w", key, err)
	}
	a.facts.Set(key, data)
	return nil
}

// InUse implements [caller.Record].
func (a *attachment) InUse() ([]netip.Addr, error) {
	others, err := a.op.others(a.IfName).InUse()
	if err != nil || a.op.Record == nil {
		return others, err
	}
	return append(others, footprint.AddressesOf(a.op.Record.Attachments, map[string]bool{a.IfName: true})...), nil
}

// Claim implements [caller.Record]. It is called with host-local's lock
// held.
func (a *attachment) Claim(dir string, addr netip.Addr) {
	a.claims.Add(addr)
	a.op.notes().Note(record.Line{Key: a.key(), Dirs: []string{dir}, Addresses: []netip.Addr{addr}})
}

// MayRelease implements [caller.Record].
func (a *attachment) MayRelease(id, ifName string, addr netip.Addr) bool {
	return a.op.garbage.MayRelease(a.network.config.Name, ipamdir.Reservation{ContainerID: id, IfName: ifName, Addr: addr})
}

// claimResult notes the addresses in a result, because an executable may have
// delegated their reservation.
func (a *attachment) claimResult(result json.RawMessage) {
	claimed, _ := a.claims.All()
	run := a.network.config.Plugins[a.part.From:] // those before noted their own when they ran
	if len(claimed) > 0 || !slices.ContainsFunc(run, func(p *libcni.PluginConfig) bool { return p.Network.IPAM.Type == known.HostLocal }) {
		return
	}
	if addrs := footprint.Addresses(result); len(addrs) > 0 {
		a.claims.Add(addrs...)
		a.op.notes().Note(record.Line{Key: a.key(), Addresses: addrs})
	}
}

// emptied decides whether an empty reservation belongs to this attachment.
func (a *attachment) emptied(addresses []netip.Addr) func(ipamdir.Reservation) bool {
	judged := claims.Attachment{
		Ledger: a.op.notes(), Key: a.key(), Claims: &a.claims,
		Addresses: addresses, Answered: a.state == record.Added,
	}
	if n := a.entry(); n != nil && n.Call <= 1 {
		judged.Recorded = a.op.Record.Since
	}
	return judged.Judge()
}

package cni

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/footprint"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/plainfile"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/sweep"
)

// claims are the addresses that host-local has reserved for an attachment.
type claims struct {
	mu    sync.Mutex
	addrs []netip.Addr
	since time.Time // when this call entered the attachment in the ledger
}

// restart forgets those of an attempt that was undone.
func (c *claims) restart(since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addrs, c.since = nil, since
}

func (c *claims) add(addrs ...netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addrs = append(c.addrs, addrs...)
}

func (c *claims) all() []netip.Addr {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.addrs)
}

func (s *snapshot) ledger() *record.Ledger { return s.records.Ledger(s.owner) }

func (a *attachment) key() record.Key {
	return record.Key{ContainerID: record.PluginID(a.ContainerID), Network: a.network.config.Name, IfName: a.IfName}
}

// enter notes in the owner's ledger that attachments are about to be recorded.
// GC is the better for it, and no call the worse without. It reaches the disk
// before the record goes, see ledgerSafe: until then the record names them.
func (op *operation) enter(attachments []*attachment) {
	now := op.ledger().Now()
	var lines []record.Line
	for _, a := range attachments {
		if a.part.From > 0 {
			continue // it was entered when it was made ahead of time, under the same ID
		}
		a.claims.restart(now)
		line := record.Line{Key: a.key(), Dirs: footprint.IPAMDirs(a.network.config), Time: now}
		lines = append(lines, line)
	}
	op.addLines(lines)
}

// syncLedger begins to bring to the disk that attachments with addresses of
// host-local's were entered. DELs take longer, so that nobody waits for it.
func (op *operation) syncLedger(attachments []*attachment) {
	if op.entered == nil && slices.ContainsFunc(attachments, func(a *attachment) bool { return len(footprint.IPAMDirs(a.network.config)) > 0 }) {
		op.entered = op.ledger().Sync()
	}
}

// ledgerSafe waits until the ledger names the attachments whatever happens to the
// machine. A power cut can bring a reservation back that was released, and the
// record that named its holder not.
func (op *operation) ledgerSafe(attachments []*attachment) {
	op.syncLedger(attachments)
	if err := op.entered.Wait(); err != nil {
		op.unentered(err)
	}
}

// enterGone notes that nothing is left of attachments.
func (op *operation) enterGone(attachments []*attachment) {
	now := plainfile.Now()
	var lines []record.Line
	for _, a := range attachments {
		lines = append(lines, record.Line{Key: a.key(), Gone: true, Time: now})
	}
	op.addLines(lines)
	if !op.ledger().Long() {
		return
	}
	if err := op.ledger().Compact(op.settled); err != nil {
		op.unentered(err)
	}
}

func (op *operation) addLines(lines []record.Line) {
	if err := op.ledger().Add(lines...); err != nil {
		op.unentered(err)
	}
}

func (op *operation) unentered(err error) {
	op.logger.Warn("note in the ledger what GC can go by", "container", op.id, "error", err)
}

// Claim is [caller.Reservations]'s. It is called with host-local's lock held.
func (a *attachment) Claim(dir string, addr netip.Addr) {
	a.claims.add(addr)
	a.op.addLines([]record.Line{{Key: a.key(), Dirs: []string{dir}, Addresses: []netip.Addr{addr}}})
}

// MayRelease is [caller.Reservations]'s.
func (a *attachment) MayRelease(id, ifName string, addr netip.Addr) bool {
	return a.garbage.mayRelease(a.network.config.Name, sweep.Reservation{ContainerID: id, IfName: ifName, Addr: addr})
}

var _ caller.Reservations = (*attachment)(nil)

// claimResult notes the addresses of a result, which an executable may have had
// reserved by another.
func (a *attachment) claimResult(result json.RawMessage) {
	if len(a.claims.all()) > 0 || a.op.verb != "ADD" || len(footprint.IPAMDirs(a.network.config)) == 0 {
		return
	}
	addrs := footprint.Addresses(result)
	if len(addrs) > 0 {
		a.claims.add(addrs...)
		a.op.addLines([]record.Line{{Key: a.key(), Addresses: addrs}})
	}
}

// settled are the attachments whose reservations are released for good: no file
// is theirs, and that it is not has reached the disk.
func (s *snapshot) settled(gone map[record.Key]record.Known) []record.Key {
	held, synced := map[record.Key]bool{}, map[string]error{}
	for _, k := range gone {
		for _, dir := range k.Dirs {
			if _, done := synced[dir]; done {
				continue
			}
			synced[dir] = sweep.SyncDir(dir)
			_, err := sweep.Stale(dir, func(r sweep.Reservation) bool {
				held[record.Key{ContainerID: record.PluginID(r.ContainerID), Network: filepath.Base(dir), IfName: r.IfName}] = true
				return false
			})
			synced[dir] = join(synced[dir], err)
		}
	}
	var keys []record.Key
	for key, k := range gone {
		unknown := func(dir string) bool { return synced[dir] != nil }
		if len(k.Dirs) > 0 && len(k.Doubtful) == 0 && !held[key] && !slices.ContainsFunc(k.Dirs, unknown) {
			keys = append(keys, key)
		}
	}
	return keys
}

// longestADD is how long after it was recorded a plugin of a runtime that was
// killed is taken to have gone on. A plugin has two minutes by default.
const longestADD = 10 * time.Minute

// emptied decides about an empty reservation in host-local's directory, which
// its own file mode shows to be made by a program like it: it is what is left of
// this attachment if it was made while the ADD was under way, and if its address
// is the attachment's or, as after an executable was killed, none is known.
//
// One that an administrator made in the same moment cannot be told from it, nor
// one of the same tick of the clock: that stays, and is reported.
func (a *attachment) emptied(names []netip.Addr) func(r sweep.Reservation) bool {
	known := sync.OnceValue(a.known)
	doubtful := map[string]bool{} // of which it has been said
	return func(r sweep.Reservation) bool {
		k := known()
		all := slices.Concat(names, k.Addresses)
		of := slices.Contains(all, r.Addr) || len(all) == 0 && a.state != record.Added
		if !of || k.Since.IsZero() || r.Made.Before(k.Since) {
			return false
		}
		if r.MadeBetween(k.Since, k.Until) {
			return true
		}
		if doubtful[r.Path()] {
			return false
		}
		doubtful[r.Path()] = true
		a.op.logger.Warn("an empty reservation may be left of a plugin that was killed, or an administrator's: delete it if it is nobody's",
			"container", a.op.id, "network", a.network.config.Name, "path", r.Path())
		a.op.addLines([]record.Line{{Key: a.key(), Dirs: []string{r.Dir}, Doubtful: []netip.Addr{r.Addr}}})
		return false
	}
}

// known returns the ledger's entry of the attachment, with this call's claims. Until is
// when its ADD can have ended at the latest.
func (a *attachment) known() record.Known {
	all, err := a.op.ledger().Read()
	if err != nil {
		a.op.unentered(err)
	}
	k := all[a.key()]
	k.Addresses = append(k.Addresses, a.claims.all()...)
	now := a.op.ledger().Now()
	if !a.claims.since.IsZero() {
		k.Since, k.Until = a.claims.since, now
		return k
	}
	if n := a.recordedAs(); k.Since.IsZero() && n != nil && n.Call <= 1 {
		k.Since = a.op.rec.Since
	}
	if k.Until = k.Since.Add(longestADD); k.Until.After(now) {
		k.Until = now
	}
	return k
}

// recordedAs is the attachment as it is on record, nil if it is not.
func (a *attachment) recordedAs() *record.Network {
	if a.op.rec == nil {
		return nil
	}
	return a.op.rec.Find(a.IfName)
}

// reservedFor are reservations in the network's host-local directories that an
// executable host-local would release in GC, as they are on no record here, and
// that are not garbage: another program's. If there is one that no list of
// attachments can name, left says why the network's plugins cannot be asked.
func (s *snapshot) reservedFor(n *Network, g *garbage) (all []types.GCAttachment, left string, err error) {
	if !s.releasesByItself(n) {
		return nil, "", nil
	}
	for _, dir := range footprint.IPAMDirs(n.config) {
		foreign, others, err := sweep.Foreign(dir)
		if err != nil {
			return nil, "", fmt.Errorf("network %q: plugins are not asked to collect garbage, since it is not known whose addresses are reserved: %w", n.config.Name, err)
		}
		if len(foreign) > 0 {
			return nil, fmt.Sprintf("network %q: plugins were not asked to collect garbage, since an executable host-local would release %s, "+
				"which says no attachment; delete it if it is nobody's reservation", n.config.Name, strings.Join(foreign, ", ")), nil
		}
		for _, r := range others {
			if !g.mayRelease(n.config.Name, r) {
				all = append(all, types.GCAttachment{ContainerID: r.ContainerID, IfName: r.IfName})
			}
		}
	}
	return all, "", nil
}

// releasesByItself reports whether a GC of the network has a host-local release
// addresses that does not ask this runtime which.
func (s *snapshot) releasesByItself(n *Network) bool {
	builtIn := func(typ string) bool {
		p, err := s.provider(typ)
		return err == nil && p.kind == PluginBuiltIn
	}
	a := &attachment{op: &operation{snapshot: s}, network: n}
	return a.chain().CanGC() && slices.ContainsFunc(n.config.Plugins, func(p *libcni.PluginConfig) bool {
		return p.Network.IPAM.Type == known.HostLocal && !(builtIn(p.Network.Type) && builtIn(known.HostLocal))
	})
}

// withAttachments is the list with those of more that are not in it.
func withAttachments(list, more []types.GCAttachment) []types.GCAttachment {
	seen := map[types.GCAttachment]bool{}
	for _, a := range list {
		seen[a] = true
	}
	list = slices.Clone(list)
	for _, a := range more {
		if !seen[a] {
			seen[a] = true
			list = append(list, a)
		}
	}
	return list
}

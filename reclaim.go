package cni

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/footprint"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/sweep"
)

// garbage are the attachments of this owner's ledger that are on no record, of
// any owner, and that nobody wants.
type garbage struct {
	known map[record.Key]record.Known
	held  map[string][]netip.Addr // addresses of attachments on record, by network
}

// mayRelease reports whether a reservation is garbage: the ledger names it by
// container, interface and address, and no record has the address.
func (g *garbage) mayRelease(network string, r sweep.Reservation) bool {
	if g == nil {
		return false
	}
	k, ok := g.known[record.Key{ContainerID: record.PluginID(r.ContainerID), Network: network, IfName: r.IfName}]
	return ok && k.Names(r.Addr) && !g.isHeld(network, r.Addr)
}

func (g *garbage) isHeld(network string, addr netip.Addr) bool {
	return slices.Contains(g.held[network], addr) || slices.Contains(g.held[""], addr) // of a damaged record
}

// garbage finds them. As long as a record cannot be read, everything may be its
// container's.
func (s *snapshot) garbage(o GCOptions) (*garbage, error) {
	g := &garbage{held: map[string][]netip.Addr{}}
	var err error
	if g.known, err = s.ledger().Read(); err != nil || len(g.known) == 0 {
		return g, err
	}
	valid, err := s.validAttachments()
	if err != nil {
		return nil, fmt.Errorf("what is left of containers that are on no record is not looked for: %w", err)
	}
	for key := range g.known {
		a := types.GCAttachment{ContainerID: string(key.ContainerID), IfName: key.IfName}
		if slices.Contains(valid[key.Network], a) || slices.Contains(o.Keep, string(key.ContainerID)) {
			delete(g.known, key)
		}
	}
	found, err := s.records.List()
	for _, f := range found {
		for _, n := range f.Record.Networks {
			g.held[n.Name] = append(g.held[n.Name], footprint.AddressesOf([]record.Network{n}, nil)...)
		}
	}
	return g, err
}

// reclaim removes what is left of garbage, and settles it in the ledger: what is
// released stays so, as the directories are synced before.
func (s *snapshot) reclaim(ctx context.Context, g *garbage, dry bool, report *Report) error {
	var errs []error
	failed := s.reclaimAddresses(ctx, g, dry, report)
	var settled []record.Key
	for _, key := range sorted(g.known) {
		k := g.known[key]
		dirs := s.dirsOf(key, k)
		var err error
		if !k.Gone {
			err = s.reclaimLost(ctx, key, k, dry, report)
			for _, dir := range dirs {
				err = join(err, sweep.SyncDir(dir))
			}
		}
		errs = append(errs, err)
		if err == nil && !slices.ContainsFunc(dirs, func(dir string) bool { return failed[dir] != nil }) {
			settled = append(settled, key)
		}
	}
	for _, err := range failed {
		errs = append(errs, err)
	}
	now, err := s.ledger().Read() // doubts may have arisen just now
	errs = append(errs, err)
	settled = slices.DeleteFunc(settled, func(key record.Key) bool {
		left := doubtful(now[key])
		report.Left = append(report.Left, left...)
		return len(left) > 0
	})
	slices.Sort(report.Reclaimed)
	slices.Sort(report.Left)
	if !dry && len(settled) > 0 {
		errs = append(errs, s.ledger().Settle(settled))
	}
	return join(errs...)
}

// doubtful are the empty reservations of which nobody can tell whose they are,
// as far as they are there still.
func doubtful(k record.Known) (lines []string) {
	for _, dir := range k.Dirs {
		for _, addr := range k.Doubtful {
			path := filepath.Join(dir, addr.String())
			if info, err := os.Lstat(path); err == nil && info.Size() == 0 {
				lines = append(lines, path+" is empty: it is left of a plugin that was killed, or it is an administrator's reservation; delete it if it is nobody's")
			}
		}
	}
	return lines
}

func sorted(known map[record.Key]record.Known) []record.Key {
	keys := make([]record.Key, 0, len(known))
	for key := range known {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b record.Key) int {
		return slices.Compare([]string{string(a.ContainerID), a.Network, a.IfName}, []string{string(b.ContainerID), b.Network, b.IfName})
	})
	return keys
}

// reclaimLost removes all that can be left of an attachment whose record was
// lost.
func (s *snapshot) reclaimLost(ctx context.Context, key record.Key, k record.Known, dry bool, report *Report) error {
	found, err := s.cleanUp(ctx, CleanUpTarget{
		ContainerID: string(key.ContainerID), Network: key.Network, IfName: key.IfName, DryRun: dry,
	}, &k)
	for _, line := range found {
		report.Reclaimed = append(report.Reclaimed, fmt.Sprintf("%s %s: %s", key.ContainerID, key.IfName, line))
	}
	if err != nil && !errors.Is(err, ErrNotSupported) {
		return fmt.Errorf("reclaim %s of container %s on network %q: %w", key.IfName, key.ContainerID, key.Network, err)
	}
	return nil
}

// reclaimAddresses releases what host-local holds for attachments of which
// nothing was left once, and returns the directories in which it failed.
func (s *snapshot) reclaimAddresses(ctx context.Context, g *garbage, dry bool, report *Report) (failed map[string]error) {
	networks := map[string]string{} // by directory
	for key, k := range g.known {
		if !k.Gone {
			continue
		}
		for _, dir := range s.dirsOf(key, k) {
			networks[dir] = key.Network
		}
	}
	failed = map[string]error{}
	for dir, network := range networks {
		stale, err := sweep.Stale(dir, func(r sweep.Reservation) bool { return g.cameBack(network, r) })
		report.Reclaimed = append(report.Reclaimed, sweep.Lines(stale)...)
		if !dry {
			err = join(err, sweep.Remove(ctx, stale), sweep.SyncDir(dir))
		}
		if err != nil {
			failed[dir] = err
		}
	}
	return failed
}

// cameBack reports whether a reservation is that of an attachment of which
// nothing was left once. One that has come back empty, because what it said had
// not reached the disk, is of the time of the attachment.
func (g *garbage) cameBack(network string, r sweep.Reservation) bool {
	if r.IfName != "" {
		key := record.Key{ContainerID: record.PluginID(r.ContainerID), Network: network, IfName: r.IfName}
		return g.known[key].Gone && g.mayRelease(network, r)
	}
	for key, k := range g.known {
		during := !k.Since.IsZero() && r.MadeBetween(k.Since, k.Until)
		if key.Network == network && k.Gone && during && slices.Contains(k.Addresses, r.Addr) && !g.isHeld(network, r.Addr) {
			return true
		}
	}
	return false
}

// dirsOf are where host-local keeps addresses of the attachment. Of those that
// earlier versions recorded it is found by the configuration.
func (s *snapshot) dirsOf(key record.Key, k record.Known) []string {
	if len(k.Dirs) > 0 {
		return k.Dirs
	}
	return s.addressDirs(key.Network)
}

// addressDirs are where host-local keeps the addresses of a network.
func (s *snapshot) addressDirs(network string) []string {
	loaded, err := s.find(network)
	if err != nil {
		return []string{footprint.DefaultIPAMDir(network)} // not loaded any more
	}
	var dirs []string
	for _, n := range loaded {
		dirs = append(dirs, footprint.IPAMDirs(n.config)...)
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

package claims

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/footprint"
	"github.com/embedcni/cni/internal/ipamdir"
	"github.com/embedcni/cni/internal/record"
)

// Garbage are the attachments that an earlier version noted in an owner's ledger, and
// that are not wanted and on no record of any owner.
type Garbage struct {
	Known map[record.Key]record.Known
	held  map[string][]netip.Addr // addresses of attachments on record, by network
}

// FindGarbage returns the attachments in the ledger that are not wanted. found
// are the records of all owners.
func FindGarbage(known map[record.Key]record.Known, wanted func(record.Key) bool, found []record.Found) *Garbage {
	g := &Garbage{Known: known, held: map[string][]netip.Addr{}}
	for key := range known {
		if wanted(key) {
			delete(known, key)
		}
	}
	for _, f := range found {
		for _, n := range f.Record.Attachments {
			g.held[n.Network] = append(g.held[n.Network], footprint.AddressesOf([]record.Attachment{n}, nil)...)
		}
	}
	return g
}

// Keys returns the attachments in order.
func (g *Garbage) Keys() []record.Key {
	return slices.SortedFunc(maps.Keys(g.Known), func(a, b record.Key) int {
		return slices.Compare([]string{string(a.ContainerID), a.Network, a.IfName}, []string{string(b.ContainerID), b.Network, b.IfName})
	})
}

// names reports whether a reservation is garbage: the ledger names its
// container, interface and address, and no record has the address.
func (g *Garbage) names(network string, r ipamdir.Reservation) bool {
	k, ok := g.Known[keyOf(network, r)]
	return ok && k.Names(r.Addr) && !g.isHeld(network, r.Addr)
}

func (g *Garbage) isHeld(network string, addr netip.Addr) bool {
	return slices.Contains(g.held[network], addr) || slices.Contains(g.held[""], addr) // of a damaged record
}

// Release releases host-local's reservations, in the directories of each
// attachment, for attachments that once left nothing behind. It returns a line
// for each, and the directories in which it failed. With dry it releases
// nothing.
func (g *Garbage) Release(ctx context.Context, dirsOf func(record.Key, record.Known) []string, dry bool) (released []string, failed map[string]error) {
	networks := map[string]string{} // by directory
	for key, k := range g.Known {
		if !k.Gone {
			continue
		}
		for _, dir := range dirsOf(key, k) {
			networks[dir] = key.Network
		}
	}
	failed = map[string]error{}
	for dir, network := range networks {
		stale, err := ipamdir.Stale(dir, func(r ipamdir.Reservation) bool { return g.cameBack(network, r) })
		for _, r := range stale {
			released = append(released, r.String())
		}
		if !dry {
			err = errors.Join(err, ipamdir.Release(ctx, stale), ipamdir.SyncDir(dir))
		}
		if err != nil {
			failed[dir] = err
		}
	}
	return released, failed
}

// cameBack reports whether a reservation belongs to an attachment that once left
// nothing behind. A power cut brings the reservation back, sometimes empty; an
// empty one must be of the attachment's time.
func (g *Garbage) cameBack(network string, r ipamdir.Reservation) bool {
	if r.IfName != "" {
		return g.Known[keyOf(network, r)].Gone && g.names(network, r)
	}
	for key, k := range g.Known {
		during := !k.Since.IsZero() && r.MadeBetween(k.Since, k.Until)
		if key.Network == network && k.Gone && during && slices.Contains(k.Addresses, r.Addr) && !g.isHeld(network, r.Addr) {
			return true
		}
	}
	return false
}

// Others returns the attachments that have reservations in host-local's
// directories of a network and are not garbage. Unnamed are files that name no
// attachment.
func (g *Garbage) Others(network string, dirs []string) (all []types.GCAttachment, unnamed []string, err error) {
	for _, dir := range dirs {
		foreign, others, err := ipamdir.Foreign(dir)
		if err != nil || len(foreign) > 0 {
			return nil, foreign, err
		}
		for _, r := range others {
			if !g.names(network, r) {
				all = append(all, types.GCAttachment{ContainerID: r.ContainerID, IfName: r.IfName})
			}
		}
	}
	return all, nil, nil
}

// Doubtful describes the empty reservations whose owner is unknown, as far as
// they still exist.
func Doubtful(k record.Known) (lines []string) {
	for _, dir := range k.Dirs {
		for _, addr := range k.Doubtful {
			path := filepath.Join(dir, addr.String())
			if info, err := os.Lstat(path); err == nil && info.Size() == 0 {
				lines = append(lines, path+" is empty: a killed plugin left it, or an administrator reserved the address; delete it if nobody uses it")
			}
		}
	}
	return lines
}

package cni

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/claims"
	"github.com/embedcni/cni/internal/container"
	"github.com/embedcni/cni/internal/footprint"
	"github.com/embedcni/cni/internal/ipamdir"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/runner"
)

// garbage returns the attachments in this owner's ledger that are not wanted and
// on no record of any owner. It fails while a record cannot be read, because
// anything may belong to that record's container.
func (s *snapshot) garbage(o GCOptions, report *Report) (*claims.Garbage, error) {
	entered, err := s.ledger().Read()
	if err != nil || len(entered) == 0 {
		return &claims.Garbage{}, err
	}
	valid, err := s.validAttachments()
	if err != nil {
		return nil, fmt.Errorf("leftovers of containers that are no longer on record were not searched for: %w", err)
	}
	found, err := s.Records.List()
	// The ledger has the ID under which a pool made a container, and Keep has the
	// caller's; only the record connects them. While a container to keep is on no
	// record, it may be any of those whose namespaces a pool made and that exist.
	lost := slices.DeleteFunc(slices.Clone(o.Keep), func(id string) bool {
		return slices.ContainsFunc(found, func(f record.Found) bool { return string(f.Record.ContainerID) == id })
	})
	return claims.FindGarbage(entered, func(key record.Key) bool {
		a := types.GCAttachment{ContainerID: string(key.ContainerID), IfName: key.IfName}
		if slices.Contains(valid[key.Network], a) || slices.Contains(o.Keep, string(key.ContainerID)) {
			return true
		}
		if len(lost) == 0 || !s.HasPooled(key.ContainerID) {
			return false
		}
		report.Left = append(report.Left, fmt.Sprintf("%s %s on network %q: a pool made it, and it may be a container in Keep that is on no record: %s; "+
			"if it is not, call GC without that one in Keep", key.ContainerID, key.IfName, key.Network, strings.Join(lost, ", ")))
		return true
	}, found), err
}

// reclaim removes the leftovers of garbage, and settles it in the ledger. The
// directories are synced before, so that no power cut restores a reservation.
func (s *snapshot) reclaim(ctx context.Context, g *claims.Garbage, dry bool, report *Report) error {
	var errs []error
	released, failed := g.Release(ctx, s.dirsOf, dry)
	report.Reclaimed = append(report.Reclaimed, released...)
	var settled []record.Key
	for _, key := range g.Keys() {
		k := g.Known[key]
		dirs := s.dirsOf(key, k)
		var err error
		if !k.Gone {
			err = s.reclaimLost(ctx, key, k, dry, report)
			for _, dir := range dirs {
				err = join(err, ipamdir.SyncDir(dir))
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
	now, err := s.ledger().Read() // new doubts may have arisen
	errs = append(errs, err)
	settled = slices.DeleteFunc(settled, func(key record.Key) bool {
		left := claims.Doubtful(now[key])
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

// reclaimLost removes all possible leftovers of an attachment whose record was
// lost.
func (s *snapshot) reclaimLost(ctx context.Context, key record.Key, k record.Known, dry bool, report *Report) error {
	found, err := s.cleanUp(ctx, CleanUpTarget{
		ContainerID: string(key.ContainerID), Network: key.Network, IfName: key.IfName, DryRun: dry,
	}, &k, container.Access{HasBarrier: !dry})
	for _, line := range found {
		report.Reclaimed = append(report.Reclaimed, fmt.Sprintf("%s %s: %s", key.ContainerID, key.IfName, line))
	}
	if err != nil && !errors.Is(err, ErrNotSupported) {
		return fmt.Errorf("reclaim %s of container %s on network %q: %w", key.IfName, key.ContainerID, key.Network, err)
	}
	return nil
}

// dirsOf returns the directories in which host-local keeps addresses of the
// attachment. Earlier versions recorded none, so the loaded networks decide.
func (s *snapshot) dirsOf(key record.Key, k record.Known) []string {
	if len(k.Dirs) > 0 {
		return k.Dirs
	}
	loaded, err := s.find(key.Network)
	if err != nil {
		return []string{footprint.DefaultIPAMDir(key.Network)} // not loaded any more
	}
	var dirs []string
	for _, n := range loaded {
		dirs = append(dirs, footprint.IPAMDirs(n.config)...)
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// reservedFor returns other programs' attachments with reservations in the
// network's host-local directories: an executable host-local would release these
// in GC, because they are on no record here. If no list of attachments can name
// one of them, left explains why GC of the network's plugins cannot run.
func (s *snapshot) reservedFor(n *Network, g *claims.Garbage) (all []types.GCAttachment, left string, err error) {
	if !s.releasesByItself(n) {
		return nil, "", nil
	}
	all, unnamed, err := g.Others(n.config.Name, footprint.IPAMDirs(n.config))
	if err != nil {
		return nil, "", fmt.Errorf("network %q: plugins are not asked to collect garbage, since it is not known whose addresses are reserved: %w", n.config.Name, err)
	}
	if len(unnamed) > 0 {
		left = fmt.Sprintf("network %q: plugins were not asked to collect garbage, since an executable host-local would release %s, "+
			"a reservation that names no attachment; delete it if nobody uses it", n.config.Name, strings.Join(unnamed, ", "))
	}
	return all, left, nil
}

// releasesByItself reports whether a GC of the network runs a host-local that
// releases addresses without asking this runtime.
func (s *snapshot) releasesByItself(n *Network) bool {
	builtIn := func(typ string) bool {
		p, err := s.runner.Find(typ)
		return err == nil && p.Kind == runner.BuiltIn
	}
	a := &attachment{op: &operation{snapshot: s}, network: n}
	return a.chain().CanGC() && slices.ContainsFunc(n.config.Plugins, func(p *libcni.PluginConfig) bool {
		return p.Network.IPAM.Type == known.HostLocal && !(builtIn(p.Network.Type) && builtIn(known.HostLocal))
	})
}

// withAttachments returns the list with the missing ones of more added.
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

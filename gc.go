package cni

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/container"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/leftovers"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/runner"
)

// GCOptions configures GC.
type GCOptions struct {
	// Keep lists the wanted containers.
	Keep []string
	// KeepNone allows an empty Keep, which removes every container. Without it an
	// empty Keep is refused, because it is more often a mistake.
	KeepNone bool
	// KeepIf, if it is set, decides in place of Keep about each attachment of this owner's.
	// Those for which it returns false are removed; other attachments of their containers
	// stay. It is for callers that list pairs of container and interface, as CNI's GC does.
	// It may be called more than once for an attachment, and must not call the Runtime.
	//
	// A container of which attachments stay is in Report.Adopted. One with a damaged record
	// is in Report.Skipped. GC then does not search for leftovers of containers that are no
	// longer on record.
	KeepIf func(Attachment) bool
	// Configs are configurations of networks that need not be loaded, as those of
	// WithNetworkConfig. If there are any, GC asks the plugins of these networks alone, and
	// not those of the loaded ones: as a GC of CNI is of one network.
	Configs [][]byte
	// DryRun reports what GC would remove, and removes nothing.
	DryRun bool
}

// GC removes, as Remove does, every container that this owner has recorded and
// that is not in Keep. Of the containers in Keep it removes the attachments
// whose removal has failed before. Then it removes the leftovers of containers
// that an earlier version of this library noted for this owner and that are no
// longer on record, as after a power cut: the addresses that host-local holds for
// them and, if the record was lost rather than deleted, all leftovers of the
// reference plugins. If libcni's cache
// still has such a container and it lives, or may, another program may have attached it:
// it stays, and is in Report.Left. So is each other container that only libcni's cache has,
// unless it lives for certain: GC cannot know whose it was. Last GC runs
// GC of the plugins of the loaded networks, or of those in Configs, of version 1.1.0
// and later, unless the network sets disableGC. The plugins then remove everything
// that belongs to no attachment on record, of any owner.
//
// GC releases only reservations of host-local that a record of this owner's names,
// or that an earlier version noted for it and whose address is on no record: other
// programs and administrators have reservations in the same directories. GC
// tells an executable host-local that those are valid. If a reservation names no
// attachment, GC cannot do that: then it does not ask the network's plugins, and
// lists the reservation in Report.Left. While a record cannot be read, nothing
// is released.
//
// No ADD or DEL runs during GC, in this or another process. GC waits for running
// ones, so give ctx a deadline. New ones wait until GC has finished. While GC
// itself waits, it holds them up for at most two seconds at a time, and then
// lets them pass for four times as long.
//
// The report has the outcome for each container. The error joins the errors of
// the plugins' GC; GC asks all of them.
func (r *Runtime) GC(ctx context.Context, o GCOptions) (report *Report, err error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	s := r.current.Load()
	own, err := s.parseOwn(o.Configs)
	if err != nil {
		return nil, fmt.Errorf("collect garbage: %w", err)
	}
	report = &Report{}
	if o.DryRun {
		if err := s.collectDry(ctx, o, report); err != nil {
			return report, fmt.Errorf("collect garbage: %w", err)
		}
		return report, nil
	}
	held, err := s.lockBarrier(ctx)
	if err != nil {
		return nil, fmt.Errorf("collect garbage: %w", err)
	}
	defer func() { err = join(err, held.Release()) }() // after a panic too: every ADD and DEL waits for it
	if err = s.collect(ctx, o, own, report); err != nil {
		err = fmt.Errorf("collect garbage: %w", err)
	}
	return report, err
}

// collectDry reports what collect would remove, except for the plugins' GC. It reads the
// records once.
func (s *snapshot) collectDry(ctx context.Context, o GCOptions, report *Report) error {
	if o.KeepIf != nil {
		return s.collectIf(ctx, o, nil, report)
	}
	// Before the records: an earlier version enters an attachment just before it records it.
	entered, unread := s.ledger().Read()
	left, err := s.listAttached()
	if err != nil {
		return err
	}
	mine, err := s.mine(left.found, true, report)
	if err != nil {
		return err
	}
	for _, f := range mine {
		id := string(f.Record.ContainerID)
		if err := untouchable(s.store.Records, f); err != nil {
			report.add(outcome{id: nameOf(f), adopted: slices.Contains(o.Keep, id), skipped: err})
		} else if id != "" && !slices.Contains(o.Keep, id) {
			report.Removed = append(report.Removed, id)
		}
	}
	if unread != nil {
		return unread
	}
	g, err := s.garbage(o, entered, left, report)
	if err != nil {
		return err
	}
	return s.reclaim(ctx, g, true, report)
}

func (s *snapshot) collect(ctx context.Context, o GCOptions, own []*Network, report *Report) error {
	if o.KeepIf != nil {
		return s.collectIf(ctx, o, own, report)
	}
	mine, err := s.owned(false, report)
	if err != nil {
		return err
	}
	for _, f := range mine {
		id := string(f.Record.ContainerID)
		left := untouchable(s.store.Records, f)
		if id == "" && left == nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		keep := slices.Contains(o.Keep, id)
		unsettled := f.Err == nil && f.Record.IsUnsettled(s.opts.owner)
		if keep && left == nil && !unsettled {
			report.Adopted = append(report.Adopted, id)
			continue
		}
		became := outcome{id: nameOf(f), adopted: keep, skipped: left}
		if left == nil {
			var err error
			became.removed, err = s.removeAgain(ctx, f.Record.ContainerID, func(op *operation) (attachments, bool) { return op.unsettled(keep) })
			became.setAside(err)
		}
		report.add(became)
	}
	slices.Sort(report.Adopted)
	err = s.store.Tidy()
	g, left, gerr := s.leftovers(o, report)
	if gerr != nil { // anything may be attached
		return join(err, gerr)
	}
	return join(err, s.reclaim(ctx, g, false, report), s.collectByPlugins(ctx, g, left, own, report))
}

// leftovers returns the garbage, and the attachments that are left, to which nobody adds
// meanwhile.
func (s *snapshot) leftovers(o GCOptions, report *Report) (*leftovers.Garbage, *attached, error) {
	entered, err := s.ledger().Read()
	if err != nil {
		return nil, nil, err
	}
	left, err := s.listAttached()
	if err != nil {
		return nil, nil, err
	}
	g, err := s.garbage(o, entered, left, report)
	return g, left, err
}

// collectByPlugins runs GC for each network of the call or, if it has none, for each
// loaded one, unless one of a network's plugins would release another program's
// reservation.
func (s *snapshot) collectByPlugins(ctx context.Context, g *leftovers.Garbage, left *attached, own []*Network, report *Report) (err error) {
	valid, err := leftovers.FindValid(left.found, s.loadedNames(own), left.cached)
	if err != nil {
		return err
	}
	host, err := s.store.Hosts.Open(s.opts.hostNetNS)
	if err != nil {
		return err
	}
	defer func() { err = join(err, host.Close()) }()
	op := &operation{e: s, c: s.store.New("", host)}
	networks := own
	if len(own) == 0 {
		networks = s.networks
	}
	var errs []error
	for _, n := range networks {
		if n.config.Name == "" {
			continue // no container can be attached to it
		}
		a := op.about(n)
		reserved, left, err := n.reservations(g)
		if left != "" {
			report.Left = append(report.Left, left)
		}
		if left != "" || err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, a.errors("GC", a.chain().GC(ctx, valid.With(n.config.Name, reserved))))
	}
	return join(errs...)
}

// loadedNames returns the names of the loaded networks, and of others.
func (s *snapshot) loadedNames(others []*Network) (names []string) {
	for _, n := range append(slices.Clone(s.networks), others...) {
		names = append(names, n.config.Name)
	}
	return names
}

// garbage returns the attachments that were entered in this owner's ledger, are not
// wanted, are on no record of any owner, and do not live. It fails while a record cannot be read,
// because anything may belong to that record's container.
func (s *snapshot) garbage(o GCOptions, entered map[leftovers.Key]leftovers.Known, left *attached, report *Report) (_ *leftovers.Garbage, err error) {
	recorded, err := leftovers.FindValid(left.found, s.loadedNames(nil), nil)
	if err != nil {
		return nil, fmt.Errorf("leftovers of containers that are no longer on record were not searched for: %w", err)
	}
	unrecorded, err := s.unrecordedAttachments(left.cached)
	if err != nil {
		return nil, err
	}
	defer func() { err = join(err, unrecorded.host.Close()) }()
	report.Left = append(report.Left, unrecorded.ended(func(key leftovers.Key) bool {
		_, judged := entered[key] // below
		return judged || recorded.Has(key) || slices.Contains(o.Keep, string(key.ContainerID))
	})...)
	// The ledger has the ID under which a pool made a container, and Keep has the
	// caller's; only the record connects them. While a container to keep is on no
	// record, it may be any of those whose namespaces a pool made and that exist.
	lost := slices.DeleteFunc(slices.Clone(o.Keep), func(id string) bool {
		return slices.ContainsFunc(left.found, func(f record.Found) bool { return string(f.Record.ContainerID) == id })
	})
	return leftovers.FindGarbage(entered, func(key leftovers.Key) bool {
		if recorded.Has(key) || slices.Contains(o.Keep, string(key.ContainerID)) {
			return true
		}
		if len(lost) == 0 || !s.store.Pools.Has(key.ContainerID) {
			why, stays := unrecorded.stays(key, entered[key])
			report.Left = append(report.Left, why...)
			return stays
		}
		report.Left = append(report.Left, fmt.Sprintf("%s %s on network %q: a pool made it, and it may be a container in Keep that is on no record: %s; "+
			"if it is not, call GC without that one in Keep", key.ContainerID, key.IfName, key.Network, strings.Join(lost, ", ")))
		return true
	}, left.found), nil
}

// reclaim removes the leftovers of garbage, and settles it in the ledger. The
// directories are synced before, so that no power cut restores a reservation.
func (s *snapshot) reclaim(ctx context.Context, g *leftovers.Garbage, dry bool, report *Report) error {
	var errs []error
	released, failed := g.Release(ctx, s.dirsOf, s.store.Records.SyncDir, dry)
	report.Reclaimed = append(report.Reclaimed, released...)
	var settled []leftovers.Key
	for _, key := range g.Keys() {
		k := g.Known[key]
		dirs := s.dirsOf(key, k)
		var err error
		if !k.Gone {
			err = s.reclaimLost(ctx, key, k, dry, report)
			for _, dir := range dirs {
				err = join(err, s.store.Records.SyncDir(dir))
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
	settled = slices.DeleteFunc(settled, func(key leftovers.Key) bool {
		left := g.Known[key].StillDoubtful()
		report.Left = append(report.Left, left...)
		return len(left) > 0
	})
	slices.Sort(report.Reclaimed)
	slices.Sort(report.Left)
	if !dry {
		errs = append(errs, s.ledger().Settle(settled))
	}
	return join(errs...)
}

// reclaimLost removes all possible leftovers of an attachment whose record was
// lost.
func (s *snapshot) reclaimLost(ctx context.Context, key leftovers.Key, k leftovers.Known, dry bool, report *Report) error {
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
func (s *snapshot) dirsOf(key leftovers.Key, k leftovers.Known) []string {
	if len(k.Dirs) > 0 {
		return k.Dirs
	}
	loaded, err := s.find(key.Network)
	if err != nil {
		return []string{leftovers.DefaultIPAMDir(key.Network)} // not loaded any more
	}
	var dirs []string
	for _, n := range loaded {
		dirs = append(dirs, leftovers.IPAMDirs(n.config)...)
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// reservations returns other programs' attachments with reservations in the
// network's host-local directories: an executable host-local would release these
// in GC, because they are on no record here. If no list of attachments can name
// one of them, left explains why GC of the network's plugins cannot run.
func (n *Network) reservations(g *leftovers.Garbage) (all []types.GCAttachment, left string, err error) {
	if !n.releasesByItself() {
		return nil, "", nil
	}
	all, unnamed, err := g.Others(n.config.Name, leftovers.IPAMDirs(n.config))
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
func (n *Network) releasesByItself() bool {
	builtIn := func(typ string) bool {
		p, err := n.snapshot.runnerOf(n).Find(typ)
		return err == nil && p.Kind == runner.BuiltIn
	}
	a := &attachment{op: &operation{e: n.snapshot}, network: n}
	return a.chain().CanGC() && slices.ContainsFunc(n.config.Plugins, func(p *libcni.PluginConfig) bool {
		return p.Network.IPAM.Type == known.HostLocal && !(builtIn(p.Network.Type) && builtIn(known.HostLocal))
	})
}

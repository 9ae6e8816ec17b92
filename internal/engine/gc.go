package engine

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

// gcOptions say what stays; see cni.GCOptions.
type GCOptions struct {
	Keep []string
	// KeepIf, if it is set, decides in place of Keep about each attachment.
	KeepIf func(*record.Record, *record.Attachment) bool
	// Networks are those whose plugins are asked; nil means the loaded ones.
	Networks []*Network
	DryRun   bool
}

// gc removes what is on record and not wanted.
func (eng *Engine) GC(ctx context.Context, o GCOptions) (r *Report, err error) {
	r = &Report{}
	if o.DryRun {
		return r, eng.collectDry(ctx, o, r)
	}
	held, err := eng.lockBarrier(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = Join(err, held.Release()) }() // after a panic too: every ADD and DEL waits for it
	return r, eng.collect(ctx, o, r)
}

// collectDry reports what collect would remove, except for the plugins' GC. It reads the
// records once.
func (eng *Engine) collectDry(ctx context.Context, o GCOptions, report *Report) error {
	if o.KeepIf != nil {
		return eng.collectIf(ctx, o, report)
	}
	// Before the records: an earlier version enters an attachment just before it records it.
	entered, unread := eng.ledger().Read()
	left, err := eng.listAttached()
	if err != nil {
		return err
	}
	mine, err := eng.mine(left.found, true, report)
	if err != nil {
		return err
	}
	for _, f := range mine {
		id := string(f.Record.ContainerID)
		if err := untouchable(eng.Store.Records, f); err != nil {
			report.add(outcome{id: nameOf(f), adopted: slices.Contains(o.Keep, id), skipped: err})
		} else if id != "" && !slices.Contains(o.Keep, id) {
			report.Removed = append(report.Removed, id)
		}
	}
	if unread != nil {
		return unread
	}
	g, err := eng.garbage(o, entered, left, report)
	if err != nil {
		return err
	}
	return eng.reclaim(ctx, g, true, report)
}

func (eng *Engine) collect(ctx context.Context, o GCOptions, report *Report) error {
	if o.KeepIf != nil {
		return eng.collectIf(ctx, o, report)
	}
	mine, err := eng.owned(false, report)
	if err != nil {
		return err
	}
	for _, f := range mine {
		id := string(f.Record.ContainerID)
		left := untouchable(eng.Store.Records, f)
		if id == "" && left == nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		keep := slices.Contains(o.Keep, id)
		unsettled := f.Err == nil && f.Record.IsUnsettled(eng.opts.Owner)
		if keep && left == nil && !unsettled {
			report.Adopted = append(report.Adopted, id)
			continue
		}
		became := outcome{id: nameOf(f), adopted: keep, skipped: left}
		if left == nil {
			var err error
			became.removed, err = eng.removeAgain(ctx, f.Record.ContainerID, func(op *operation) (attachments, bool) { return op.unsettled(keep) })
			became.setAside(err)
		}
		report.add(became)
	}
	slices.Sort(report.Adopted)
	err = eng.Store.Tidy()
	g, left, gerr := eng.leftovers(o, report)
	if gerr != nil { // anything may be attached
		return Join(err, gerr)
	}
	return Join(err, eng.reclaim(ctx, g, false, report), eng.collectByPlugins(ctx, g, left, o.Networks, report))
}

// leftovers returns the garbage, and the attachments that are left, to which nobody adds
// meanwhile.
func (eng *Engine) leftovers(o GCOptions, report *Report) (*leftovers.Garbage, *attached, error) {
	entered, err := eng.ledger().Read()
	if err != nil {
		return nil, nil, err
	}
	left, err := eng.listAttached()
	if err != nil {
		return nil, nil, err
	}
	g, err := eng.garbage(o, entered, left, report)
	return g, left, err
}

// collectByPlugins runs GC for each network of the call or, if it has none, for each
// loaded one, unless one of a network's plugins would release another program's
// reservation.
func (eng *Engine) collectByPlugins(ctx context.Context, g *leftovers.Garbage, left *attached, own []*Network, report *Report) (err error) {
	valid, err := leftovers.FindValid(left.found, eng.loadedNames(own), left.cached)
	if err != nil {
		return err
	}
	host, err := eng.Store.Hosts.Open(eng.opts.HostNetNS)
	if err != nil {
		return err
	}
	defer func() { err = Join(err, host.Close()) }()
	op := &operation{eng: eng, c: eng.Store.New("", host)}
	networks := own
	if len(own) == 0 {
		networks = eng.networks
	}
	var errs []error
	for _, n := range networks {
		if n.Config.Name == "" {
			continue // no container can be attached to it
		}
		a := op.about(n)
		reserved, left, err := eng.reservations(n, g)
		if left != "" {
			report.Left = append(report.Left, left)
		}
		if left != "" || err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, a.errors("GC", a.chain().GC(ctx, valid.With(n.Config.Name, reserved))))
	}
	return Join(errs...)
}

// loadedNames returns the names of the loaded networks, and of others.
func (eng *Engine) loadedNames(others []*Network) (names []string) {
	for _, n := range append(slices.Clone(eng.networks), others...) {
		names = append(names, n.Config.Name)
	}
	return names
}

// garbage returns the attachments that were entered in this owner's ledger, are not
// wanted, are on no record of any owner, and do not live. It fails while a record cannot be read,
// because anything may belong to that record's container.
func (eng *Engine) garbage(o GCOptions, entered map[leftovers.Key]leftovers.Known, left *attached, report *Report) (_ *leftovers.Garbage, err error) {
	recorded, err := leftovers.FindValid(left.found, eng.loadedNames(nil), nil)
	if err != nil {
		return nil, fmt.Errorf("leftovers of containers that are no longer on record were not searched for: %w", err)
	}
	unrecorded, err := eng.unrecordedAttachments(left.cached)
	if err != nil {
		return nil, err
	}
	defer func() { err = Join(err, unrecorded.host.Close()) }()
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
		if len(lost) == 0 || !eng.Store.Pools.Has(key.ContainerID) {
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
func (eng *Engine) reclaim(ctx context.Context, g *leftovers.Garbage, dry bool, report *Report) error {
	var errs []error
	released, failed := g.Release(ctx, eng.dirsOf, eng.Store.Records.SyncDir, dry)
	report.Reclaimed = append(report.Reclaimed, released...)
	var settled []leftovers.Key
	for _, key := range g.Keys() {
		k := g.Known[key]
		dirs := eng.dirsOf(key, k)
		var err error
		if !k.Gone {
			err = eng.reclaimLost(ctx, key, k, dry, report)
			for _, dir := range dirs {
				err = Join(err, eng.Store.Records.SyncDir(dir))
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
		errs = append(errs, eng.ledger().Settle(settled))
	}
	return Join(errs...)
}

// reclaimLost removes all possible leftovers of an attachment whose record was
// lost.
func (eng *Engine) reclaimLost(ctx context.Context, key leftovers.Key, k leftovers.Known, dry bool, report *Report) error {
	found, err := eng.cleanUp(ctx, CleanUpTarget{
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
func (eng *Engine) dirsOf(key leftovers.Key, k leftovers.Known) []string {
	if len(k.Dirs) > 0 {
		return k.Dirs
	}
	loaded := eng.loadedAs(key.Network)
	if loaded == nil {
		return []string{leftovers.DefaultIPAMDir(key.Network)} // not loaded any more
	}
	var dirs []string
	for _, n := range loaded {
		dirs = append(dirs, leftovers.IPAMDirs(n.Config)...)
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// reservations returns other programs' attachments with reservations in the
// network's host-local directories: an executable host-local would release these
// in GC, because they are on no record here. If no list of attachments can name
// one of them, left explains why GC of the network's plugins cannot run.
func (eng *Engine) reservations(n *Network, g *leftovers.Garbage) (all []types.GCAttachment, left string, err error) {
	if !eng.releasesByItself(n) {
		return nil, "", nil
	}
	all, unnamed, err := g.Others(n.Config.Name, leftovers.IPAMDirs(n.Config))
	if err != nil {
		return nil, "", fmt.Errorf("network %q: plugins are not asked to collect garbage, since it is not known whose addresses are reserved: %w", n.Config.Name, err)
	}
	if len(unnamed) > 0 {
		left = fmt.Sprintf("network %q: plugins were not asked to collect garbage, since an executable host-local would release %s, "+
			"a reservation that names no attachment; delete it if nobody uses it", n.Config.Name, strings.Join(unnamed, ", "))
	}
	return all, left, nil
}

// releasesByItself reports whether a GC of the network runs a host-local that
// releases addresses without asking this runtime.
func (eng *Engine) releasesByItself(n *Network) bool {
	builtIn := func(typ string) bool {
		p, err := eng.RunnerOf(n).Find(typ)
		return err == nil && p.Kind == runner.BuiltIn
	}
	a := (&operation{eng: eng}).about(n)
	return a.chain().CanGC() && slices.ContainsFunc(n.Config.Plugins, func(p *libcni.PluginConfig) bool {
		return p.Network.IPAM.Type == known.HostLocal && !(builtIn(p.Network.Type) && builtIn(known.HostLocal))
	})
}

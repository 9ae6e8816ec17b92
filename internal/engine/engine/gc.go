package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/engine/container"
	"github.com/embedcni/cni/internal/engine/leftovers"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/run/runner"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/outcome"
)

// GCOptions say what stays; see cni.GCOptions.
type GCOptions struct {
	Keep []string
	// KeepIf, if it is set, decides in place of Keep about each attachment.
	KeepIf func(*record.Record, *record.Attachment) bool
	// Networks are those whose plugins are asked; nil means the loaded ones.
	Networks []*Network
	DryRun   bool
}

// collection is one GC in progress.
type collection struct {
	eng    *Engine
	o      GCOptions
	report *outcome.Report

	// What remains when the containers that are not wanted have been removed. Nobody adds
	// to it meanwhile.
	found   []record.Found                    // on record, of every owner
	cached  []*libcni.NetworkAttachment       // in libcni's cache
	entered map[leftovers.Key]leftovers.Known // in earlier versions' ledger
	garbage *leftovers.Garbage
}

// GC removes what is on record and not wanted.
func (eng *Engine) GC(ctx context.Context, o GCOptions) (_ *outcome.Report, err error) {
	g := &collection{eng: eng, o: o, report: &outcome.Report{}}
	if !o.DryRun {
		if err := eng.RefuseInside(ctx); err != nil {
			return nil, err
		}
		held, lerr := eng.Store.Locks.LockBarrier(ctx) // no ADD or DEL is in progress
		if lerr != nil {
			return nil, lerr
		}
		defer func() { err = Join(err, held.Release()) }() // after a panic too: every ADD and DEL waits for it
	}
	switch {
	case o.KeepIf != nil:
		err = g.collectIf(ctx)
	case o.DryRun:
		err = g.collectDry(ctx)
	default:
		err = g.collect(ctx)
	}
	return g.report, err
}

// collectDry reports what collect would remove, except for the plugins' GC. It reads the
// records once.
func (g *collection) collectDry(ctx context.Context) error {
	// Before the records: an earlier version enters an attachment just before it records it.
	var unread error
	g.entered, unread = ledgerOf(g.eng).Read()
	if err := g.list(); err != nil {
		return err
	}
	own, err := mine(g.eng, g.found, true, g.report)
	if err != nil {
		return err
	}
	for _, f := range own {
		id := string(f.Record.ContainerID)
		if err := untouchable(g.eng.Store.Records, f); err != nil {
			fate{id: nameOf(f), adopted: g.keeps(id), skipped: err}.addTo(g.report)
		} else if id != "" && !g.keeps(id) {
			g.report.Removed = append(g.report.Removed, id)
		}
	}
	if unread != nil {
		return unread
	}
	if err := g.findGarbage(); err != nil {
		return err
	}
	return g.reclaim(ctx)
}

func (g *collection) keeps(id string) bool { return slices.Contains(g.o.Keep, id) }

func (g *collection) collect(ctx context.Context) error {
	mine, err := owned(g.eng, false, g.report)
	if err != nil {
		return err
	}
	for _, f := range mine {
		left := untouchable(g.eng.Store.Records, f)
		if f.Record.ContainerID == "" && left == nil {
			continue
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		g.collectContainer(ctx, f, left)
	}
	slices.Sort(g.report.Adopted)
	err = g.eng.Store.Tidy()
	if lerr := g.leftovers(); lerr != nil { // anything may be attached
		return Join(err, lerr)
	}
	return Join(err, g.reclaim(ctx), g.collectByPlugins(ctx))
}

// collectContainer removes a container unless it is kept; of one that is kept it ends the
// removals that were begun. It does nothing if untouched is the reason why.
func (g *collection) collectContainer(ctx context.Context, f record.Found, untouched error) {
	id := string(f.Record.ContainerID)
	keep := g.keeps(id)
	unsettled := f.Err == nil && f.Record.IsUnsettled(g.eng.opts.Owner)
	if keep && untouched == nil && !unsettled {
		g.report.Adopted = append(g.report.Adopted, id)
		return
	}
	became := fate{id: nameOf(f), adopted: keep, skipped: untouched}
	if untouched == nil {
		var err error
		became.removed, err = g.remove(ctx, f.Record.ContainerID, func(op *operation) (attachments, bool) { return unsettledOf(op, keep) })
		became.setAside(err)
	}
	became.addTo(g.report)
}

// leftovers lists what remains, and finds the garbage among it.
func (g *collection) leftovers() (err error) {
	if g.entered, err = ledgerOf(g.eng).Read(); err != nil {
		return err
	}
	if err := g.list(); err != nil {
		return err
	}
	return g.findGarbage()
}

// collectByPlugins runs GC for each network of the call or, if it has none, for each
// loaded one, unless one of a network's plugins would release another program's
// reservation.
func (g *collection) collectByPlugins(ctx context.Context) (err error) {
	valid, err := leftovers.FindValid(g.found, g.loadedNames(g.o.Networks), g.cached)
	if err != nil {
		return err
	}
	host, err := g.eng.openHost()
	if err != nil {
		return err
	}
	defer func() { err = Join(err, host.Close()) }()
	networks := g.o.Networks
	if len(networks) == 0 {
		networks = g.eng.networks
	}
	var errs []error
	for _, n := range networks {
		if n.Config.Name == "" {
			continue // no container can be attached to it
		}
		kept, err := valid.ForeignKept(n.Config)
		g.report.Left, errs = append(g.report.Left, kept...), append(errs, err)
		reserved, left, err := g.reservations(n)
		if left != "" {
			g.report.Left = append(g.report.Left, left)
		}
		if left != "" || err != nil {
			errs = append(errs, err)
			continue
		}
		a := about(g.eng, n, host)
		errs = append(errs, a.errors("GC", a.chain().GC(ctx, valid.With(n.Config.Name, reserved))))
	}
	return Join(errs...)
}

// loadedNames returns the names of the loaded networks, and of others.
func (g *collection) loadedNames(others []*Network) (names []string) {
	for _, n := range append(slices.Clone(g.eng.networks), others...) {
		names = append(names, n.Config.Name)
	}
	return names
}

// findGarbage finds the attachments that were entered in this owner's ledger, are not
// wanted, are on no record of any owner, and do not live. It fails while a record cannot be read,
// because anything may belong to that record's container.
func (g *collection) findGarbage() (err error) {
	recorded, err := leftovers.FindValid(g.found, g.loadedNames(nil), nil)
	if err != nil {
		return fmt.Errorf("leftovers of containers that are no longer on record were not searched for: %w", err)
	}
	unrecorded := &unrecorded{eng: g.eng, all: g.cached}
	if unrecorded.host, err = g.eng.openHost(); err != nil {
		return err
	}
	defer func() { err = Join(err, unrecorded.host.Close()) }()
	stays := func(key leftovers.Key) bool { return recorded.Has(key) || g.keeps(string(key.ContainerID)) }
	g.report.Left = append(g.report.Left, unrecorded.ended(func(key leftovers.Key) bool {
		_, judged := g.entered[key] // below
		return judged || stays(key)
	})...)
	lost := g.lost()
	g.garbage = leftovers.FindGarbage(g.entered, func(key leftovers.Key) bool {
		if stays(key) {
			return true
		}
		if len(lost) == 0 || !g.eng.Store.Pools.Has(key.ContainerID) {
			why, stays := unrecorded.stays(key, g.entered[key])
			g.report.Left = append(g.report.Left, why...)
			return stays
		}
		g.report.Left = append(g.report.Left, fmt.Sprintf("%s %s on network %q: a pool made it, and it may be a container in Keep that is on no record: %s; "+
			"if it is not, call GC without that one in Keep", key.ContainerID, key.IfName, key.Network, strings.Join(lost, ", ")))
		return true
	}, g.found)
	return nil
}

// lost returns the containers to keep that are on no record. The ledger has the ID under
// which a pool made a container, and Keep has the caller's; only the record connects them.
// So any of these may be a container whose namespace a pool made and that exists.
func (g *collection) lost() []string {
	return slices.DeleteFunc(slices.Clone(g.o.Keep), func(id string) bool {
		return slices.ContainsFunc(g.found, func(f record.Found) bool { return string(f.Record.ContainerID) == id })
	})
}

// reclaim removes the leftovers of garbage, and settles it in the ledger. The
// directories are synced before, so that no power cut restores a reservation.
func (g *collection) reclaim(ctx context.Context) error {
	var errs []error
	released, failed := g.garbage.Release(ctx, g.dirsOf, g.eng.Store.Records.SyncDir, g.o.DryRun)
	g.report.Reclaimed = append(g.report.Reclaimed, released...)
	var settled []leftovers.Key
	for _, key := range g.garbage.Keys() {
		k := g.garbage.Known[key]
		dirs := g.dirsOf(key, k)
		var err error
		if !k.Gone {
			err = g.reclaimLost(ctx, key, k)
			for _, dir := range dirs {
				err = Join(err, g.eng.Store.Records.SyncDir(dir))
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
		left := g.garbage.Known[key].StillDoubtful()
		g.report.Left = append(g.report.Left, left...)
		return len(left) > 0
	})
	slices.Sort(g.report.Reclaimed)
	slices.Sort(g.report.Left)
	if !g.o.DryRun {
		errs = append(errs, ledgerOf(g.eng).Settle(settled))
	}
	return Join(errs...)
}

// reclaimLost removes all possible leftovers of an attachment whose record was
// lost.
func (g *collection) reclaimLost(ctx context.Context, key leftovers.Key, k leftovers.Known) error {
	found, err := cleanUp(ctx, g.eng, CleanUpTarget{
		ContainerID: string(key.ContainerID), Network: key.Network, IfName: key.IfName, DryRun: g.o.DryRun,
	}, &k, container.Access{HasBarrier: !g.o.DryRun})
	for _, line := range found {
		g.report.Reclaimed = append(g.report.Reclaimed, fmt.Sprintf("%s %s: %s", key.ContainerID, key.IfName, line))
	}
	if err != nil && !errors.Is(err, outcome.ErrNotSupported) {
		return fmt.Errorf("reclaim %s of container %s on network %q: %w", key.IfName, key.ContainerID, key.Network, err)
	}
	return nil
}

// dirsOf returns the directories in which host-local keeps addresses of the
// attachment. Earlier versions recorded none, so the loaded networks decide.
func (g *collection) dirsOf(key leftovers.Key, k leftovers.Known) []string {
	if len(k.Dirs) > 0 {
		return k.Dirs
	}
	loaded := g.eng.loadedAs(key.Network)
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
func (g *collection) reservations(n *Network) (all []types.GCAttachment, left string, err error) {
	if !g.releasesByItself(n) {
		return nil, "", nil
	}
	all, unnamed, err := g.garbage.Others(n.Config.Name, leftovers.IPAMDirs(n.Config))
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
func (g *collection) releasesByItself(n *Network) bool {
	builtIn := func(typ string) bool {
		p, err := g.eng.RunnerOf(n).Find(typ)
		return err == nil && p.Kind == runner.BuiltIn
	}
	return about(g.eng, n, nil).chain().CanGC() && slices.ContainsFunc(n.Config.Plugins, func(p *libcni.PluginConfig) bool {
		return p.Network.IPAM.Type == conflist.HostLocal && !(builtIn(p.Network.Type) && builtIn(conflist.HostLocal))
	})
}

func (g *collection) list() (err error) {
	if g.found, err = g.eng.Store.Records.List(); err != nil {
		return err
	}
	g.cached, err = chain.AllCached(g.eng.opts.StateDir, "")
	return err
}

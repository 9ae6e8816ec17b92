package cni

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/embedcni/cni/internal/batch"
	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/dirwatch"
	"github.com/embedcni/cni/internal/footprint"
	"github.com/embedcni/cni/internal/guard"
	"github.com/embedcni/cni/internal/hold"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/hostwatch"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/repair"
)

// guarding is a Guard that runs. It implements [guard.Host].
type guarding struct {
	*hostwatch.Watcher
	runtime *Runtime
	options GuardOptions
	host    *hostns.NetNS // that it watches
	records guardedRecords

	reporting sync.Mutex
}

func (r *Runtime) guard(ctx context.Context, o GuardOptions) (err error) {
	if o.Classes == 0 {
		o.Classes = GuardClass(guard.All)
	}
	if o.Classes&^GuardClass(guard.All) != 0 {
		return fmt.Errorf("%w: class %#x", ErrInvalidArgument, uint8(o.Classes))
	}
	if o.GCInterval > 0 && o.GC == nil {
		return fmt.Errorf("%w: GCInterval is set, and GC is not", ErrInvalidArgument)
	}
	s := r.current.Load()
	if err := s.refuseInside(ctx); err != nil {
		return err
	}
	g := &guarding{runtime: r, options: o}
	if g.host, err = s.Hosts.Open(s.hostNetNS); err != nil {
		return err
	}
	defer func() { err = join(err, g.host.Close()) }()
	if g.Watcher, err = hostwatch.Open(g.host, guard.Class(o.Classes), hostwatch.Buffer); err != nil {
		return err
	}
	defer func() { err = join(err, g.Watcher.Close()) }()
	if g.records.watch, err = dirwatch.Open(s.Records.Dir()); err != nil {
		return err
	}
	defer func() { err = join(err, g.records.watch.Close()) }()
	holds, err := g.watchHolds(s)
	if err != nil {
		return err
	}
	defer func() { err = join(err, holds.Close()) }()
	defer r.unguarded.Store(nil)
	core := &guard.Guard{
		Host: g, Classes: guard.Class(o.Classes), Now: time.Now, Report: g.report, Jobs: g.jobs(),
		Sources: append(g.Watcher.All(), func(ctx context.Context, emit func(guard.Event)) error { return watchHolds(ctx, holds, emit) }),
	}
	return core.Run(ctx)
}

// lookAgainIn limits the time of the repair of one container, so that one that hangs
// does not keep the others waiting.
const lookAgainIn = 30 * time.Second

// Look implements [guard.Host].
func (g *guarding) Look(ctx context.Context, whole bool, ids []string) (_ map[string]guard.Verdict, err error) {
	s := g.runtime.current.Load()
	var found []record.Found
	if whole {
		if found, err = s.owned(true, nil); err != nil {
			return nil, err
		}
	} else {
		for _, id := range ids {
			found = append(found, s.reload(record.Found{File: record.Name(record.ID(id))}))
		}
	}
	found = slices.DeleteFunc(found, func(f record.Found) bool { return f.Record == nil || f.Err != nil || !g.guards(s, f.Record) })
	holds, err := s.holds().List()
	if err != nil {
		return nil, err
	}
	verdicts := make(map[string]guard.Verdict)
	for _, e := range s.look(ctx, g.host, found, true) {
		if v, ok := verdictOf(e, holds); ok {
			verdicts[string(e.found.Record.ContainerID)] = v
		}
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return verdicts, nil
}

// guards reports whether the container of a record is this guard's matter: attached in
// this boot of the machine, from the namespace that it watches.
func (g *guarding) guards(s *snapshot, rec *record.Record) bool {
	return !rec.Warm && rec.Host == g.host.String() && rec.Boot == s.Boot && rec.Owned(s.owner)
}

// verdictOf returns the verdict for the guard, if there is something to decide. A
// container that is gone, or cannot be compared for another reason than a call in
// progress, is the matter of Health and Recover.
func verdictOf(e *examined, holds []hold.Hold) (v guard.Verdict, ok bool) {
	if errors.Is(e.reason, ErrBusy) {
		return guard.Verdict{Err: e.reason}, true
	}
	if e.state != "" {
		return v, false
	}
	for _, c := range e.parts {
		for _, d := range c.differences {
			if !d.Inside {
				v.Found = append(v.Found, foundOf(e.found.Record, c.network, c.ifName, d, holds))
			}
		}
		if c.err != nil && len(c.differences) == 0 && !errors.Is(c.err, ErrNotRepairable) {
			v.Err = join(v.Err, c.err)
		}
	}
	return v, len(v.Found) > 0 || v.Err != nil
}

// foundOf returns a difference for the guard.
func foundOf(rec *record.Record, network, ifName string, d compare.Difference, holds []hold.Hold) guard.Found {
	return guard.Found{
		Item: guard.Item{
			Container: string(rec.ContainerID), Network: network, IfName: ifName,
			Plugin: d.Plugin, Kind: string(d.Kind), Object: d.Object,
		},
		Class: classOf(d), Fixable: d.Fix != nil,
		Held:   isHeld(holds, rec, network),
		Detail: differenceOf(network, ifName, d),
	}
}

// classOf returns the class of a difference, or zero if it is not guarded.
func classOf(d compare.Difference) guard.Class {
	if d.Inside {
		return 0
	}
	switch d.Kind {
	case compare.Rule, compare.Port, compare.Zone:
		return guard.Rules
	case compare.Interface, compare.Address, compare.Bridge, compare.BridgePort, compare.Queue, compare.Sysctl: // a new bridge has new sysctls
		return guard.Links
	case compare.Route:
		return guard.Routes
	}
	return 0
}

// Repair implements [guard.Host].
func (g *guarding) Repair(ctx context.Context, id string, want func(guard.Found) bool) (o guard.Outcome, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookAgainIn)
	defer cancel()
	s := g.runtime.current.Load()
	kept, err := s.lockHolds(ctx, true)
	if err != nil {
		return o, err
	}
	defer func() { err = join(err, kept.Release()) }()
	brief, stop := context.WithTimeoutCause(ctx, lockedGrace, ErrBusy)
	defer stop()
	op, err := s.beginRepair(brief, record.ID(id))
	if err != nil {
		return o, err
	}
	defer op.end()
	switch err := op.recallToRepair(); {
	case errors.Is(err, ErrNotAttached), errors.Is(err, ErrNotRepairable):
		s.logger.Debug("a container is not repaired", "container", id, "reason", err)
		return o, nil // removed since, or the matter of Recover
	case err != nil:
		return o, err
	}
	if op.Host.ID() != g.host.ID() {
		return o, nil
	}
	holds, err := s.holds().List()
	if err != nil {
		return o, err
	}
	var errs []error
	for _, a := range op.attachments {
		if a.own() && !op.Record.IsUnfinished(a.entry()) {
			errs = append(errs, a.mend(ctx, holds, want, &o))
		}
	}
	return o, join(errs...)
}

// mend repairs those parts of an attachment that are wanted.
func (a *attachment) mend(ctx context.Context, holds []hold.Hold, want func(guard.Found) bool, o *guard.Outcome) error {
	found := func(d compare.Difference) guard.Found {
		return foundOf(a.op.Record, a.network.config.Name, a.IfName, d, holds)
	}
	r := &repairing{attachment: a, runner: a.runner(), delayed: &batch.Batch{}}
	out, err := repair.Run(ctx, r, repair.Options{Want: func(d compare.Difference) bool { return want(found(d)) }})
	r.report(ctx, out, &RepairReport{})
	for _, d := range out.Repaired {
		o.Made = append(o.Made, found(d))
	}
	for _, left := range out.Left {
		if left.Inside {
			continue
		}
		o.Left = append(o.Left, found(left.Difference))
		if left.Failed {
			err = join(err, left.Reason)
		}
	}
	return a.errors(repairOp, err)
}

// guardedRecords are the records as the guard knows them.
type guardedRecords struct {
	watch *dirwatch.Watch

	mu    sync.Mutex
	ids   map[string]record.ID // by file
	known bool                 // all were read
	retry map[record.ID]bool   // have a removal that failed
	// changed are the containers that have changed since take, and taken those that it
	// has returned with signs. A container that comes and goes in between is in neither.
	changed map[string]guard.Container
	taken   map[string]bool
}

// Refresh implements [guard.Host].
func (g *guarding) Refresh(context.Context) ([]guard.Container, error) {
	s := g.runtime.current.Load()
	g.records.mu.Lock()
	defer g.records.mu.Unlock()
	err := g.records.refresh(s, func(rec *record.Record) bool { return g.guards(s, rec) })
	return g.records.take(), err
}

// recordExt is the end of the names of records' files.
const recordExt = ".json"

// fileOf returns the record that a file has, or "".
func fileOf(name string) string {
	file, ok := strings.CutSuffix(name, recordExt)
	if !ok {
		return ""
	}
	return file
}

// refresh reads the records that have changed.
func (k *guardedRecords) refresh(s *snapshot, guards func(*record.Record) bool) error {
	seen, err := k.watch.Now()
	if err != nil {
		s.logger.Warn("all records are read, since their changes are not known", "error", err)
	}
	files := seen.Names
	if k.known = k.known && !seen.Lost; !k.known { // until it has succeeded
		if files, err = k.allFiles(s); err != nil {
			return err
		}
	}
	if k.ids == nil {
		k.ids, k.retry = make(map[string]record.ID), make(map[record.ID]bool)
		k.changed, k.taken = make(map[string]guard.Container), make(map[string]bool)
	}
	k.known = true
	for _, name := range files {
		file := fileOf(name)
		if file == "" {
			continue
		}
		rec, err := s.Records.LoadFile(file)
		before, had := k.ids[file]
		if rec == nil || err != nil || rec.ContainerID == "" {
			if had {
				k.change(guard.Container{ID: string(before)})
				delete(k.ids, file)
				delete(k.retry, before)
			}
			continue
		}
		k.ids[file] = rec.ContainerID
		c := guard.Container{ID: string(rec.ContainerID)}
		delete(k.retry, rec.ContainerID)
		if guards(rec) {
			c.Signs = signsOf(rec, s.owner)
			if isUnsettled(record.Found{Record: rec}, s.owner) {
				k.retry[rec.ContainerID] = true
			}
		}
		k.change(c)
	}
	return nil
}

func (k *guardedRecords) change(c guard.Container) {
	if len(c.Signs) == 0 && !k.taken[c.ID] {
		delete(k.changed, c.ID)
		return
	}
	k.changed[c.ID] = c
}

// take returns the containers that have changed since it did before.
func (k *guardedRecords) take() (all []guard.Container) {
	for id, c := range k.changed {
		all = append(all, c)
		if len(c.Signs) == 0 {
			delete(k.taken, id)
		} else {
			k.taken[id] = true
		}
	}
	clear(k.changed)
	return all
}

// allFiles returns the files of all records, those that are known and gone included.
func (k *guardedRecords) allFiles(s *snapshot) ([]string, error) {
	files, err := s.Records.Files()
	if err != nil {
		return nil, err
	}
	for file := range k.ids {
		if !slices.Contains(files, file) {
			files = append(files, file)
		}
	}
	for i := range files {
		files[i] += recordExt
	}
	return files, nil
}

// signsOf returns the signs of the attachments of an owner that are complete, and of
// which no removal has begun.
func signsOf(rec *record.Record, owner string) (signs []guard.Sign) {
	for i := range rec.Attachments {
		n := &rec.Attachments[i]
		if n.State != record.Added || rec.IsUnfinished(n) || rec.OwnerOf(n) != owner {
			continue
		}
		o := fwrules.Owner{Network: n.Network, ContainerID: string(rec.Plugins()), IfName: n.IfName}
		chains, comments := o.Names()
		for _, c := range o.Chains() {
			comments = append(comments, c.Comment)
		}
		comments = append(comments, o.ContainerID) // portmap's in nftables
		for _, c := range chains {
			signs = append(signs, guard.OfChain(c))
		}
		for _, c := range comments {
			signs = append(signs, guard.OfComment(c))
		}
		for _, a := range footprint.Addresses(n.Result) {
			signs = append(signs, guard.OfAddress(a)...)
		}
		signs = append(signs, linkSigns(n)...)
	}
	return signs
}

// linkSigns returns the signs of the interfaces on the host that an ADD has reported.
func linkSigns(n *record.Attachment) (signs []guard.Sign) {
	result := chain.Decode(n.Result)
	if result == nil {
		return nil
	}
	for _, i := range result.Interfaces {
		if i.Sandbox == "" && i.Name != "" {
			signs = append(signs, guard.OfLink(i.Name))
		}
	}
	return signs
}

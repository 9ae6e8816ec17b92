package engine

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/engine/container"
	"github.com/embedcni/cni/internal/engine/leftovers"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/outcome"
)

// CleanUpTarget names an attachment; see cni.CleanUpTarget.
type CleanUpTarget struct {
	ContainerID, Network, IfName string
	Addresses                    []netip.Addr
	Config                       []byte
	DryRun                       bool
}

// ForceCleanUp removes the leftovers of one attachment, and its record.
func (eng *Engine) ForceCleanUp(ctx context.Context, t CleanUpTarget) ([]string, error) {
	return cleanUp(ctx, eng, t, nil, container.Access{})
}

// forced is a CleanUp of one attachment in progress.
type forced struct {
	t       CleanUpTarget
	op      *operation
	list    *libcni.NetworkConfigList // the caller's; nil: none
	entered *leftovers.Known          // what an earlier version's ledger says, if only that knows the attachment
	known   memory
}

// cleanUp removes the leftovers of one attachment. If only the ledger of an
// earlier version knows the attachment, it releases the addresses that the ledger names.
func cleanUp(ctx context.Context, eng *Engine, t CleanUpTarget, entered *leftovers.Known, how container.Access) (found []string, err error) {
	id := record.ID(t.ContainerID)
	f := &forced{t: t, entered: entered}
	if f.list, err = t.validate(); err != nil {
		return nil, err
	}
	if t.DryRun {
		how.Waiting = container.Looking
	} else {
		defer func() { err = leftover(id, err) }()
	}
	if f.op, err = eng.beginTeardown(ctx, id, how); err != nil {
		return nil, err
	}
	defer f.op.end()
	if f.op.c.Place.Host.Handle == nil {
		return nil, outcome.ErrNotSupported
	}
	a, err := f.attachment()
	if err != nil {
		return nil, err
	}
	target, done, err := f.target(a)
	if err != nil {
		return nil, err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, leftovers.Limit)
	defer cancel()
	items, err := leftovers.Find(ctx, target)
	found = append(leftovers.Lines(items), f.known.lines()...)
	if err != nil || t.DryRun {
		return found, err
	}
	if left, err := leftovers.Clear(ctx, target, items, f.op.log()); len(left) > 0 || err != nil {
		return found, &outcome.LeftoverError{ContainerID: string(id), Left: left, Err: err}
	}
	return found, f.forget(a)
}

// validate checks the target before anything is touched, and returns its
// configuration; nil if it has none.
func (t CleanUpTarget) validate() (*libcni.NetworkConfigList, error) {
	err := Join(ValidateID(record.ID(t.ContainerID)), ValidateAttachmentName(t.Network, t.ContainerID, t.IfName))
	if bad := conflist.ValidateName(t.Network); bad != nil {
		err = Join(err, fmt.Errorf("network name: %w: %w", bad, outcome.ErrInvalidArgument))
	}
	if slices.ContainsFunc(t.Addresses, func(a netip.Addr) bool { return !a.IsValid() }) {
		err = Join(err, fmt.Errorf("one of the addresses is the zero Addr: %w", outcome.ErrInvalidArgument))
	}
	if err != nil || len(t.Config) == 0 {
		return nil, err
	}
	list, err := conflist.Parse(t.Config)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w: %w", err, outcome.ErrInvalidConfig)
	}
	if list.Name != t.Network {
		return nil, fmt.Errorf("the configuration is of network %q: %w", list.Name, outcome.ErrInvalidArgument)
	}
	return list, nil
}

// memory holds the places that remember an attachment.
type memory struct{ record, cache string }

func (m memory) lines() (lines []string) {
	if m.record != "" {
		lines = append(lines, "attachment record in "+m.record)
	}
	if m.cache != "" {
		lines = append(lines, "cached result in "+m.cache)
	}
	return lines
}

// attachment builds the attachment. Its configuration is the caller's, else that
// of the record, of libcni's cache, or of the loaded network; without any, the
// list has no plugins.
func (f *forced) attachment() (*attachment, error) {
	a, err := f.onRecord()
	if err != nil {
		return nil, err
	}
	if a != nil && !f.op.c.Recorded.Damaged {
		f.known.record = f.op.eng.Store.Records.Dir()
	}
	if a == nil {
		a = f.op.attachment(&Network{}, f.t.IfName)
	}
	cached, err := f.inCache()
	if err != nil {
		return nil, err
	}
	if cached != nil {
		f.known.cache = filepath.Join(f.op.eng.opts.StateDir, "results")
	}
	loaded := cache{f.op}.loaded(f.t.Network, f.t.IfName)
	switch {
	case f.list != nil:
		a.plan.Network.Config = f.list
	case a.plan.Network.Config != nil:
	case cached != nil && len(cached.Plugins) > 0:
		a.plan.Network.Config = cached
	case loaded != nil:
		a.plan.Network.Config = loaded.Config
	default:
		a.plan.Network.Config = &libcni.NetworkConfigList{Name: f.t.Network}
	}
	if a.progress.partial == nil && cached != nil {
		a.progress.partial = a.cached().Result()
	}
	return a, nil
}

// onRecord returns the recorded attachment, or nil. From a damaged record it
// uses the legible part of the result, and leaves the record to Remove, because
// it may concern other attachments too. The caller's configuration replaces a
// recorded one that this version does not accept.
func (f *forced) onRecord() (*attachment, error) {
	op, t := f.op, f.t
	rec, err := LoadRecord(op.eng.Store.Records, op.c.Recorded.ID)
	if err != nil && !errors.Is(err, record.ErrBad) {
		return nil, err
	}
	if rec == nil {
		return nil, nil
	}
	op.c.Recorded.Record, op.c.Recorded.Damaged = rec, err != nil
	n := rec.Find(t.IfName)
	if n == nil || n.State == record.Deleted || n.Network != t.Network && !op.c.Recorded.Damaged {
		return nil, nil
	}
	bare := op.attachment(&Network{}, t.IfName)
	bare.plan.ContainerID, bare.progress.partial = string(rec.Plugins()), chain.Partial(n.Result)
	if op.c.Recorded.Damaged {
		return bare, nil
	}
	if err := op.c.EnterRecorded(true); err != nil {
		return nil, err
	}
	recorded, err := op.fromEntry(n)
	if err != nil && f.list != nil {
		bare.plan.NetNS = op.c.Place.Path
		return bare, nil
	}
	return recorded, err
}

// inCache returns the configuration with which libcni cached the attachment, or
// nil if it did not. An unreadable one is empty.
func (f *forced) inCache() (*libcni.NetworkConfigList, error) {
	c, err := chain.CachedAs(f.op.eng.opts.StateDir, f.t.Network, string(f.op.c.Recorded.PluginID()), f.t.IfName).Find()
	if c == nil || err != nil {
		return nil, err
	}
	list, err := conflist.Parse(c.Config)
	if err != nil {
		f.op.log().Warn("cached configuration cannot be used", "network", c.Network, "error", err)
		return &libcni.NetworkConfigList{Name: f.t.Network}, nil
	}
	return list, nil
}

// target is the target of a sweep with the addresses that the caller knows, and those
// that host-local holds for the attachment. Without a configuration it has
// everything that the reference plugins may have left.
func (f *forced) target(a *attachment) (t leftovers.Target, done func(), err error) {
	t, done = a.target()
	t.How.Thorough, t.How.GiveUp = true, true
	t.Footprint.Kept = a.described().Kept
	if len(a.plan.Network.Config.Plugins) == 0 {
		t.Footprint.Widen()
	}
	if f.entered != nil {
		t.How.Only = f.entered.Names
		if len(f.entered.Dirs) > 0 {
			t.Footprint.IPAMDirs = f.entered.Dirs
		}
	}
	held, err := t.Held()
	if err != nil {
		done()
		return t, nil, err
	}
	for _, addr := range slices.Concat(f.t.Addresses, held) {
		if addr = addr.Unmap(); !slices.Contains(t.Footprint.Addresses, addr) {
			t.Footprint.Addresses = append(t.Footprint.Addresses, addr)
		}
	}
	return t, done, nil
}

// forget deletes the attachment, which is gone, from the cache and the
// record. The record goes last, so that a repeated call after a crash still
// finds it.
func (f *forced) forget(a *attachment) error {
	var err error
	if f.known.cache != "" {
		err = a.cached().Forget()
	}
	if f.known.record != "" {
		err = Join(err, f.op.forget([]*attachment{a}))
	}
	if err != nil {
		return &outcome.LeftoverError{ContainerID: string(f.op.c.Recorded.ID), Left: f.known.lines(), Err: err}
	}
	return nil
}

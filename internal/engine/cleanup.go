package engine

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/conflist"
	"github.com/embedcni/cni/internal/container"
	"github.com/embedcni/cni/internal/leftovers"
	"github.com/embedcni/cni/internal/record"
)

// cleanUpTarget names an attachment; see cni.CleanUpTarget.
type CleanUpTarget struct {
	ContainerID, Network, IfName string
	Addresses                    []netip.Addr
	Config                       []byte
	DryRun                       bool
}

// forceCleanUp removes the leftovers of one attachment, and its record.
func (eng *Engine) ForceCleanUp(ctx context.Context, t CleanUpTarget) ([]string, error) {
	return eng.cleanUp(ctx, t, nil, container.Access{})
}

// cleanUp removes the leftovers of one attachment. If only the ledger of an
// earlier version knows the attachment, it releases the addresses that the ledger names.
func (eng *Engine) cleanUp(ctx context.Context, t CleanUpTarget, entered *leftovers.Known, how container.Access) (found []string, err error) {
	id := record.ID(t.ContainerID)
	list, err := t.validate()
	if err != nil {
		return nil, err
	}
	if t.DryRun {
		how.Waiting = container.Looking
	} else {
		defer func() { err = leftover(id, err) }()
	}
	op, err := eng.beginTeardown(ctx, id, how)
	if err != nil {
		return nil, err
	}
	defer op.end()
	if op.c.Host.Handle == nil {
		return nil, ErrNotSupported
	}
	a, known, err := op.remembered(t, list)
	if err != nil {
		return nil, err
	}
	target, done, err := a.forcedTarget(t, entered)
	if err != nil {
		return nil, err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, leftovers.Limit)
	defer cancel()
	items, err := leftovers.Find(ctx, target)
	found = append(leftovers.Lines(items), known.lines()...)
	if err != nil || t.DryRun {
		return found, err
	}
	if left, err := leftovers.Clear(ctx, target, items, op.log()); len(left) > 0 || err != nil {
		return found, &LeftoverError{ContainerID: string(op.c.ID), Left: left, Err: err}
	}
	return found, a.forgetAll(known)
}

// validate checks the target before anything is touched, and returns its
// configuration; nil if it has none.
func (t CleanUpTarget) validate() (*libcni.NetworkConfigList, error) {
	err := Join(ValidateID(record.ID(t.ContainerID)), ValidateAttachmentName(t.Network, t.ContainerID, t.IfName))
	if bad := conflist.ValidateName(t.Network); bad != nil {
		err = Join(err, fmt.Errorf("network name: %w: %w", bad, ErrInvalidArgument))
	}
	if slices.ContainsFunc(t.Addresses, func(a netip.Addr) bool { return !a.IsValid() }) {
		err = Join(err, fmt.Errorf("one of the addresses is the zero Addr: %w", ErrInvalidArgument))
	}
	if err != nil || len(t.Config) == 0 {
		return nil, err
	}
	list, err := conflist.Parse(t.Config)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w: %w", err, ErrInvalidConfig)
	}
	if list.Name != t.Network {
		return nil, fmt.Errorf("the configuration is of network %q: %w", list.Name, ErrInvalidArgument)
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

// remembered builds the attachment. Its configuration is the caller's, else that
// of the record, of libcni's cache, or of the loaded network; without any, the
// list has no plugins.
func (op *operation) remembered(t CleanUpTarget, list *libcni.NetworkConfigList) (*attachment, memory, error) {
	var known memory
	a, err := op.onRecord(t, list != nil)
	if err != nil {
		return nil, known, err
	}
	if a != nil && !op.c.Damaged {
		known.record = op.eng.Store.Records.Dir()
	}
	if a == nil {
		a = op.attachment(&Network{}, t.IfName)
	}
	cached, err := op.inCache(t)
	if err != nil {
		return nil, known, err
	}
	if cached != nil {
		known.cache = filepath.Join(op.eng.opts.StateDir, "results")
	}
	loaded := op.eng.cachedAs(t.Network, t.IfName)
	switch {
	case list != nil:
		a.plan.Network.Config = list
	case a.plan.Network.Config != nil:
	case cached != nil && len(cached.Plugins) > 0:
		a.plan.Network.Config = cached
	case loaded != nil:
		a.plan.Network.Config = loaded.Config
	default:
		a.plan.Network.Config = &libcni.NetworkConfigList{Name: t.Network}
	}
	if a.progress.partial == nil && cached != nil {
		a.progress.partial = a.cached().Result()
	}
	return a, known, nil
}

// onRecord returns the recorded attachment, or nil. From a damaged record it
// uses the legible part of the result, and leaves the record to Remove, because
// it may concern other attachments too. The caller's configuration replaces a
// recorded one that this version does not accept.
func (op *operation) onRecord(t CleanUpTarget, configured bool) (*attachment, error) {
	rec, err := LoadRecord(op.eng.Store.Records, op.c.ID)
	if err != nil && !errors.Is(err, record.ErrBad) {
		return nil, err
	}
	if rec == nil {
		return nil, nil
	}
	op.c.Record, op.c.Damaged = rec, err != nil
	n := rec.Find(t.IfName)
	if n == nil || n.State == record.Deleted || n.Network != t.Network && !op.c.Damaged {
		return nil, nil
	}
	bare := op.attachment(&Network{}, t.IfName)
	bare.plan.ContainerID, bare.progress.partial = string(rec.Plugins()), chain.Partial(n.Result)
	if op.c.Damaged {
		return bare, nil
	}
	if err := op.c.EnterRecorded(true); err != nil {
		return nil, err
	}
	recorded, err := op.fromEntry(n)
	if err != nil && configured {
		bare.plan.NetNS = op.c.Path
		return bare, nil
	}
	if err != nil {
		return nil, err
	}
	return recorded, nil
}

// inCache returns the configuration with which libcni cached the attachment, or
// nil if it did not. An unreadable one is empty.
func (op *operation) inCache(t CleanUpTarget) (*libcni.NetworkConfigList, error) {
	c, err := chain.CachedAs(op.eng.opts.StateDir, t.Network, string(op.c.PluginID()), t.IfName).Find()
	if c == nil || err != nil {
		return nil, err
	}
	list, err := conflist.Parse(c.Config)
	if err != nil {
		op.log().Warn("cached configuration cannot be used", "network", c.Network, "error", err)
		return &libcni.NetworkConfigList{Name: t.Network}, nil
	}
	return list, nil
}

// forcedTarget is target with the addresses that the caller knows, and those
// that host-local holds for the attachment. Without a configuration it has
// everything that the reference plugins may have left.
func (a *attachment) forcedTarget(given CleanUpTarget, entered *leftovers.Known) (t leftovers.Target, done func(), err error) {
	t, done = a.target()
	t.How.Thorough, t.How.GiveUp = true, true
	if len(a.plan.Network.Config.Plugins) == 0 {
		t.Widen()
	}
	if entered != nil {
		t.How.Only = entered.Names
		if len(entered.Dirs) > 0 {
			t.IPAMDirs = entered.Dirs
		}
	}
	held, err := t.Held()
	if err != nil {
		done()
		return t, nil, err
	}
	for _, addr := range slices.Concat(given.Addresses, held) {
		if addr = addr.Unmap(); !slices.Contains(t.Addresses, addr) {
			t.Addresses = append(t.Addresses, addr)
		}
	}
	return t, done, nil
}

// forgetAll deletes the attachment, which is gone, from the cache and the
// record. The record goes last, so that a repeated call after a crash still
// finds it.
func (a *attachment) forgetAll(known memory) error {
	var err error
	if known.cache != "" {
		err = a.cached().Forget()
	}
	if known.record != "" {
		err = Join(err, a.op.forget([]*attachment{a}))
	}
	if err != nil {
		return &LeftoverError{ContainerID: string(a.op.c.ID), Left: known.lines(), Err: err}
	}
	return nil
}

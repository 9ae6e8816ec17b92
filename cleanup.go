package cni

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

// CleanUpTarget names the attachment for CleanUp.
type CleanUpTarget struct {
	ContainerID, Network, IfName string // all three must be set

	// Addresses are addresses of the container on the network that the caller
	// knows, if no record, cached result or file of host-local has them. The
	// plugin firewall identifies its rules only by addresses.
	Addresses []netip.Addr

	// Config is the network's configuration, one list as JSON. If it is empty,
	// CleanUp uses that of the record, of libcni's cache or of the loaded
	// network. Without any of these, it looks for everything that the reference
	// plugins leave under computable names, and for addresses in host-local's
	// default directory.
	Config []byte

	// DryRun lists what would be removed, and removes nothing.
	DryRun bool
}

// CleanUp removes one attachment's leftovers of the reference plugins, and its
// record, without running a plugin. It is for attachments that Remove cannot
// end: the plugins or their configuration are gone for good, or the leftovers
// are another runtime's. No network need be loaded. The leftovers of other
// plugins stay, and no record names them afterwards, so call Remove first.
//
// CleanUp returns the leftovers that it found, a line each, in the order of
// removal: rules as the commands that would delete them. A live container loses
// the attachment. Other attachments stay, even of the same container. If
// something could not be removed, or not be examined, the error is a
// *LeftoverError and the record stays.
//
// CleanUp excludes other calls for the container, and stops when ctx ends. It
// may be repeated, and may be called for an attachment that never existed.
func (r *Runtime) CleanUp(ctx context.Context, t CleanUpTarget) ([]string, error) {
	found, err := r.current.Load().cleanUp(ctx, t, nil, container.Access{})
	if err != nil {
		return found, fmt.Errorf("clean up %s of container %q on network %q: %w", t.IfName, t.ContainerID, t.Network, err)
	}
	return found, nil
}

// cleanUp is CleanUp without the validation. If only the ledger of an
// earlier version knows the attachment, it releases the addresses that the ledger names.
func (s *snapshot) cleanUp(ctx context.Context, t CleanUpTarget, entered *leftovers.Known, how container.Access) (found []string, err error) {
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
	op, err := s.beginTeardown(ctx, id, how)
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
	err := join(validateID(record.ID(t.ContainerID)), validateAttachmentName(t.Network, t.ContainerID, t.IfName))
	if bad := conflist.ValidateName(t.Network); bad != nil {
		err = join(err, fmt.Errorf("network name: %w: %w", bad, ErrInvalidArgument))
	}
	if slices.ContainsFunc(t.Addresses, func(a netip.Addr) bool { return !a.IsValid() }) {
		err = join(err, fmt.Errorf("one of the addresses is the zero Addr: %w", ErrInvalidArgument))
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
		known.record = op.e.store.Records.Dir()
	}
	if a == nil {
		a = &attachment{op: op, network: &Network{snapshot: op.e}}
		a.ContainerID, a.IfName = string(op.c.PluginID()), t.IfName
	}
	cached, err := op.inCache(t)
	if err != nil {
		return nil, known, err
	}
	if cached != nil {
		known.cache = filepath.Join(op.e.opts.stateDir, "results")
	}
	loaded := op.e.cachedAs(t.Network, t.IfName)
	switch {
	case list != nil:
		a.network.config = list
	case a.network.config != nil:
	case cached != nil && len(cached.Plugins) > 0:
		a.network.config = cached
	case loaded != nil:
		a.network.config = loaded.config
	default:
		a.network.config = &libcni.NetworkConfigList{Name: t.Network}
	}
	if a.partial == nil && cached != nil {
		a.partial = a.cached().Result()
	}
	return a, known, nil
}

// onRecord returns the recorded attachment, or nil. From a damaged record it
// uses the legible part of the result, and leaves the record to Remove, because
// it may concern other attachments too. The caller's configuration replaces a
// recorded one that this version does not accept.
func (op *operation) onRecord(t CleanUpTarget, configured bool) (*attachment, error) {
	rec, err := loadRecord(op.e.store.Records, op.c.ID)
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
	bare := &attachment{op: op, network: &Network{snapshot: op.e}, progress: progress{partial: chain.Partial(n.Result)}}
	bare.ContainerID, bare.IfName = string(rec.Plugins()), t.IfName
	if op.c.Damaged {
		return bare, nil
	}
	if err := op.c.EnterRecorded(true); err != nil {
		return nil, err
	}
	recorded, err := op.fromEntry(n)
	if err != nil && configured {
		bare.NetNS = op.c.Path
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
	c, err := chain.CachedAs(op.e.opts.stateDir, t.Network, string(op.c.PluginID()), t.IfName).Find()
	if c == nil || err != nil {
		return nil, err
	}
	list, err := conflist.Parse(c.Config)
	if err != nil {
		op.e.opts.logger.Warn("cached configuration cannot be used", "container", op.c.ID, "network", c.Network, "error", err)
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
	if len(a.network.config.Plugins) == 0 {
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
		err = join(err, a.op.forget([]*attachment{a}))
	}
	if err != nil {
		return &LeftoverError{ContainerID: string(a.op.c.ID), Left: known.lines(), Err: err}
	}
	return nil
}

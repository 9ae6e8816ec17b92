package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/conflist"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/invoke"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/record"
)

// Remove of go-cni v1.1.14 runs DEL for each network that it has loaded: in the
// caller's network namespace, with the caller's ID, path and options and the result
// in libcni's cache, by the executables in the plugin directories. It stops at the
// first error and does not read records. The checks below find containers that it
// could not remove.

// handedOver returns nil if go-cni, called from the namespace host, could remove the
// whole container. It fills in the operation's attachments.
func (op *operation) handedOver(ctx context.Context, host *hostns.NetNS) error {
	if err := op.recordHandedOver(host); err != nil {
		return err
	}
	if err := op.namespaceHandedOver(); err != nil {
		return err
	}
	var err error
	if op.attachments, err = op.fromRecord(op.rec); err != nil {
		return err
	}
	errs := []error{op.sameOptions(), op.loadedInstalled()}
	for _, a := range op.attachments {
		if err := a.handedOver(ctx); err != nil {
			errs = append(errs, fmt.Errorf("network %q, interface %s: %w", a.network.config.Name, a.IfName, err))
		}
	}
	return join(errs...)
}

// recordHandedOver checks the record as a whole.
func (op *operation) recordHandedOver(host *hostns.NetNS) error {
	rec := op.rec
	now, err := op.bootID()
	switch {
	case err != nil:
		return err
	case rec.Warm:
		return errors.New("a pool made it ahead of time, and it is no container yet; close the pool, or call Recover if its process is dead")
	case rec.PluginID != "" || rec.NetNS.Ours:
		return errors.New("a pool made it, under an ID or in a namespace that go-cni does not know; Remove it")
	case rec.HasUnknown():
		return errors.New("a newer version has added to its record; call its Release, or Remove the container")
	case slices.ContainsFunc(rec.Networks, func(n record.Network) bool { return n.State != record.Deleted && rec.OwnerOf(&n) != op.owner }):
		return errors.New("another owner has attached it too; Remove that owner's attachments first")
	case !slices.ContainsFunc(rec.Networks, func(n record.Network) bool { return n.State != record.Deleted }):
		return errors.New("nothing of it is attached; Remove it")
	case rec.Boot != now:
		return errors.New("it is dead since the machine was started anew; call Recover, or Remove it")
	case rec.Host != "" && rec.Host != host.String():
		return fmt.Errorf("its plugins ran in network namespace %s, and go-cni called from here would run them in %s; "+
			"call Release, and go-cni, from there: %w", described(rec.Host, rec.HostPath), host, ErrHostNetNS)
	}
	return nil
}

// namespaceHandedOver returns nil if the recorded path, which go-cni's caller gives to
// plugins, leads to the container's namespace, and no other process may keep the
// namespace alive by a descriptor.
func (op *operation) namespaceHandedOver() error {
	if err := op.enterRecorded(); err != nil {
		return err
	}
	if op.reached != byPath {
		return fmt.Errorf("%s no longer leads to its namespace, so that go-cni would leave what depends on it; Remove the container: %w",
			op.rec.NetNS.Path, ErrInvalidNetNS)
	}
	if op.keptHere() {
		return nil
	}
	alive, err := op.runtimeAlive(op.rec)
	if err == nil && alive {
		err = errors.New("the process that attached it lives, and may keep its namespace by an open descriptor; " +
			"call Release of the Runtime that attached it, or end that process")
	}
	return err
}

// sameOptions returns an error if two networks of the container were given different
// options. go-cni gives all networks the same.
func (op *operation) sameOptions() error {
	var first *record.Network
	for i := range op.rec.Networks {
		n := &op.rec.Networks[i]
		switch {
		case n.State == record.Deleted:
		case first == nil:
			first = n
		case !reflect.DeepEqual(first.Args, n.Args) || !sameJSON(first.Capabilities, n.Capabilities):
			return fmt.Errorf("network %q was given other arguments or capabilities than %q, and go-cni gives all of them the same; Remove it",
				n.Name, first.Name)
		}
	}
	return nil
}

// sameJSON reports whether two values are equal in JSON, regardless of the order of
// keys and of white space.
func sameJSON(a, b any) bool {
	var values [2]any
	for i, v := range []any{a, b} {
		data, err := json.Marshal(v)
		if err != nil || json.Unmarshal(data, &values[i]) != nil {
			return false
		}
	}
	return reflect.DeepEqual(values[0], values[1])
}

// loadedInstalled returns nil if go-cni would find all executables of the loaded
// networks. go-cni runs the DELs of all loaded networks, whether or not the container
// is attached to them, and stops at the first that fails.
func (op *operation) loadedInstalled() error {
	for _, n := range op.networks {
		for _, p := range n.config.Plugins {
			for _, typ := range []string{p.Network.Type, p.Network.IPAM.Type} {
				if typ == "" {
					continue
				}
				if _, err := invoke.FindByLibcni(typ, op.pluginDirs); err != nil {
					return fmt.Errorf("go-cni asks network %q too: %w; install it, or Remove the container", n.config.Name, withSentinel(err))
				}
			}
		}
	}
	return nil
}

// handedOver returns nil if go-cni could remove the attachment.
func (a *attachment) handedOver(ctx context.Context) error {
	n := a.op.rec.Find(a.IfName)
	switch {
	case n.State == record.Planned:
		return errors.New("it is attached in part; call Recover, or Remove the container")
	case n.State != record.Added || n.Failures > 0:
		return fmt.Errorf("a removal has begun (%d failures, the last: %s); Remove the container", n.Failures, orNone(n.LastError))
	}
	live, err := a.lives(a.op.attachments)
	if err == nil && !live {
		err = fmt.Errorf("there is no such interface in the container, and plugins then leave its rules; Remove the container: %w", ErrNotAttached)
	}
	errs := []error{err, a.loadedAlike(), a.cachedForGoCNI()}
	for _, typ := range a.everyType() {
		errs = append(errs, a.installed(typ))
	}
	for _, p := range a.network.config.Plugins {
		errs = append(errs, a.undoneByExecutable(ctx, p))
	}
	return join(errs...)
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// loadedAlike returns nil if the attachment's network is loaded under the same
// interface name, with the configuration that the attachment was made with.
func (a *attachment) loadedAlike() error {
	config := a.network.config
	for _, n := range a.op.networks {
		if n.config.Name != config.Name || n.ifName != a.IfName {
			continue
		}
		recorded, rerr := conflist.Whole(config)
		loaded, err := conflist.Whole(n.config)
		if err = join(rerr, err); err != nil || sameJSON(recorded, loaded) {
			return err
		}
		return errors.New("it is loaded with another configuration than it was attached with; load that one, or Remove the container")
	}
	return fmt.Errorf("it is not loaded under that interface name, and go-cni removes what it has loaded; load it, or Remove the container: %w", ErrNotFound)
}

// cachedForGoCNI returns nil if go-cni would find the result of the ADD in libcni's
// cache. go-cni has no option for the directory of the cache, and uses libcni's
// default.
func (a *attachment) cachedForGoCNI() error {
	c := a.chain()
	c.CacheDir = libcni.CacheDir
	err := c.CachedFor(&a.Attachment, json.RawMessage(a.partial))
	if errors.Is(err, chain.ErrNotCached) && canonical(a.op.stateDir) != canonical(libcni.CacheDir) {
		return fmt.Errorf("%w; go-cni looks there: make %s a link to %s, or Remove the container", err, libcni.CacheDir, a.op.stateDir)
	}
	if err != nil {
		return fmt.Errorf("%w; Remove the container", err)
	}
	return nil
}

// everyType returns the plugin types of the chain, and those that its plugins are
// known to delegate to.
func (a *attachment) everyType() []string {
	var all []string
	add := func(typ string) {
		if typ != "" && !slices.Contains(all, typ) {
			all = append(all, typ)
		}
	}
	for _, p := range a.network.config.Plugins {
		add(p.Network.Type)
		add(p.Network.IPAM.Type)
	}
	for _, p := range a.kinds.recorded() {
		add(p.Type)
	}
	return all
}

// installed returns nil if go-cni would find the executable of a type, and that
// executable is the plugin that attached the container or interchangeable with it.
func (a *attachment) installed(typ string) error {
	if a.isCallers(typ) {
		return fmt.Errorf("plugin %q is the program's own, registered with WithPlugin; Remove the container", typ)
	}
	if len(a.ConfigArgs) > 0 && !a.ignoresArgs(typ) {
		return fmt.Errorf("plugin %q was given args by WithConfigArgs, for which go-cni has no option; Remove the container", typ)
	}
	if _, err := invoke.FindByLibcni(typ, a.op.pluginDirs); err != nil {
		return fmt.Errorf("%w; install it, or Remove the container", withSentinel(err))
	}
	return nil
}

// ignoresArgs reports whether the DEL of a type is known to need no arguments.
func (a *attachment) ignoresArgs(typ string) bool {
	return known.Of(typ).BareDEL
}

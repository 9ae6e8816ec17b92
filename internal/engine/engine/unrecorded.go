package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/engine/container"
	"github.com/embedcni/cni/internal/engine/leftovers"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/outcome"
)

// cache finds a container's attachments without its record: in libcni's cache, and by the
// networks that a call is about.
type cache struct{ op *operation }

// attachments returns the attachments of a container without a whole record:
// those in libcni's cache, with their cached configuration, and the planned ones
// for the loaded networks, because a plugin may have been killed before anything
// was cached. A DEL of an attachment that was never added does nothing. If
// planned is nil, it is planned here. With mustStop the path may be stale, and
// lead to another container's namespace; otherwise the caller asks whether the
// container is alive there.
func (in cache) attachments(c *Call, mustStop bool) (all attachments, err error) {
	path := c.Path
	if path == "" && in.op.c.Recorded.Damaged {
		if path, err = in.op.eng.Store.Pins.Where(in.op.c.Recorded.ID); err != nil {
			return nil, err
		}
	}
	if err := in.op.c.OpenPath(path, "DEL"); err != nil {
		return nil, err
	}
	if mustStop && c.Path != "" {
		in.avoidOthers()
	}
	if c.Err != nil {
		return nil, c.Err
	}
	all = in.op.take(c.Planned)
	for _, a := range all {
		a.plan.NetNS, a.plan.ContainerID = in.op.c.Place.Path, string(in.op.c.Recorded.PluginID())
		in.complete(a)
		in.useConfig(a)
	}
	if len(c.Selected) == 0 {
		cached, err := in.beside(all)
		if err != nil {
			return nil, err
		}
		all = append(all, cached...)
	}
	for _, a := range all {
		// The sweep needs it as much as the plugins do, and a successful DEL
		// deletes it from the cache.
		a.progress.partial = a.cached().Result()
		if n := a.entry(); n != nil && n.Result != nil {
			a.progress.partial = chain.Partial(n.Result)
		}
		if a.progress.partial == nil {
			a.progress.partial = a.plan.Prev
		}
	}
	return all, nil
}

// beside returns the container's attachments in libcni's cache that are
// not among the known ones: on networks that are not loaded, or under other
// interface names.
func (in cache) beside(known attachments) (all attachments, err error) {
	cached, err := chain.AllCached(in.op.eng.opts.StateDir, string(in.op.c.Recorded.PluginID()))
	if err != nil {
		return nil, err
	}
	for _, c := range cached {
		if slices.ContainsFunc(known, func(a *attachment) bool { return a.plan.Network.Config.Name == c.Network && a.plan.IfName == c.IfName }) {
			continue
		}
		list, err := conflist.Parse(c.Config)
		if err != nil || len(list.Plugins) == 0 {
			in.op.log().Warn("cached configuration cannot be used", "network", c.Network, "error", err)
			continue
		}
		a := in.op.attachment(&Network{Config: list, IfName: c.IfName}, c.IfName)
		a.plan.ContainerID, a.plan.NetNS = c.ContainerID, in.op.c.Place.Path
		in.complete(a)
		all = append(all, a)
	}
	return all, nil
}

// all returns the container's attachments in libcni's cache. It reads the cache once for
// each operation.
func (in cache) all() (all attachments, err error) {
	if in.op.removal.cached != nil {
		return *in.op.removal.cached, nil
	}
	if all, err = in.beside(nil); err != nil {
		return nil, err
	}
	for _, a := range all {
		a.progress.partial = a.cached().Result()
	}
	in.op.removal.cached = &all
	return all, nil
}

// existing returns this container's attachments in libcni's cache, on any loaded
// network, that have a wanted interface name. The specification requires the
// pair of container and interface name to be unique.
func (in cache) existing(at container.Place) (attachments, error) {
	var found attachments
	for _, wanted := range in.op.attachments {
		for _, n := range in.callsNetworks() {
			if in.op.eng.Shared(n) && n != in.loaded(n.Config.Name, wanted.plan.IfName) {
				continue // the cache has one entry for that name and interface
			}
			a := in.op.attachment(n, wanted.plan.IfName)
			known, err := in.load(a, at)
			if err != nil {
				return nil, err
			}
			if known {
				in.useConfig(a)
				found = append(found, a)
			}
		}
	}
	return found, nil
}

// load fills in the cached data of an attachment in the namespace to attach.
func (in cache) load(a *attachment, at container.Place) (known bool, err error) {
	cached, err := a.cached().Load()
	if err != nil {
		// There is an entry, but it is unreadable: the container's namespace must
		// show whether it is alive.
		in.op.eng.opts.Logger.Warn("cached attachment cannot be read", "container", a.plan.ContainerID,
			"network", a.plan.Network.Config.Name, "error", err)
		a.plan.NetNS = at.Path
		return true, nil
	}
	if cached == nil {
		return false, nil
	}
	a.plan.Attachment = *cached
	found, err := a.cached().Find()
	if found == nil || err != nil {
		return err == nil, err
	}
	a.plan.NetNS, err = in.op.c.Place.Host.Validate(found.NetNS, "DEL")
	if errors.Is(err, outcome.ErrInvalidNetNS) {
		// The path leads to the host's namespace by now, for example a
		// /proc/PID/ns/net whose PID now belongs to a process of the host: the
		// container's is gone.
		a.plan.NetNS, err = "", nil
	}
	return true, err
}

// loaded returns the loaded network that libcni may have cached under that name and
// interface: the one that was loaded for the interface, or else the first with the
// name. It returns nil if no network has the name.
func (in cache) loaded(name, ifName string) *Network {
	found := in.op.eng.loadedAs(name)
	same := func(n *Network) bool { return n.IfName == ifName }
	i := slices.IndexFunc(found, same)
	if i >= 0 && !slices.ContainsFunc(found[i+1:], same) {
		return found[i]
	}
	if found == nil {
		return nil
	}
	return found[0]
}

// complete completes the parameters of this call with those of the ADD: the
// specification requires the same parameters for DEL and CHECK, and a portmap
// without its ports deletes nothing.
func (in cache) complete(a *attachment) {
	cached, err := a.cached().Load()
	if err != nil {
		in.op.eng.opts.Logger.Warn("cached attachment cannot be read", "container", a.plan.ContainerID,
			"network", a.plan.Network.Config.Name, "error", err)
		return
	}
	if cached == nil {
		return
	}
	if len(a.plan.Args) == 0 {
		a.plan.Args = cached.Args
	}
	a.plan.CapabilityArgs = Merge(cached.CapabilityArgs, a.plan.CapabilityArgs)
	a.plan.ConfigArgs = Merge(cached.ConfigArgs, a.plan.ConfigArgs)
}

// useConfig gives a DEL without a record the configuration that libcni has
// cached with the attachment, if several loaded networks have its name. They may have
// been loaded in another order since the ADD.
func (in cache) useConfig(a *attachment) {
	if !in.op.eng.Shared(a.plan.Network) {
		return
	}
	cached, err := a.cached().Find()
	if err != nil {
		in.op.eng.opts.Logger.Warn("cached attachments cannot be listed", "container", a.plan.ContainerID, "error", err)
	}
	if cached == nil {
		return
	}
	if list, err := conflist.Parse(cached.Config); err == nil && len(list.Plugins) > 0 {
		a.plan.Network = &Network{Config: list, IfName: a.plan.IfName}
	}
}

// avoidOthers makes the operation go on as if no path were given if the given path
// leads to another container's namespace: the other container keeps its interfaces,
// and the operation's own ended with their namespace. It is for removals without a
// record, which have nothing but the path to go by.
func (in cache) avoidOthers() {
	if in.op.c.Place.NetNS == nil || container.Untouched(in.op.c.Place.Host, in.op.c.Place.NetNS) && !in.op.eng.Store.Pins.Holds(in.op.c.Place.NetNS) ||
		!in.isOthers(in.op.c.Place.NetNS, in.op.c.Place.Path, true) {
		return
	}
	in.op.c.Leave()
	in.op.c.Place.Path = ""
}

// isOthers reports whether a namespace is another container's. It reads all records,
// so calls that have a record do not ask. With doubts it returns true unless the
// answer is certain.
func (in cache) isOthers(ns *netns.Handle, path string, doubts bool) bool {
	other, err := in.op.c.Other(ns, in.op.eng.opts.StateDir, doubts)
	if other == "" && (err == nil || !doubts) {
		return false
	}
	in.op.log().Warn("the network namespace is not entered, since it is or may be another container's by now", "path", path, "other", other, "error", err)
	return true
}

// avoid empties the attachment's path if it leads to another container's
// namespace for certain: for Setup, an attachment without a path is dead.
func (in cache) avoid(a *attachment) {
	if a.plan.NetNS == "" {
		return
	}
	ns, err := netns.Open(a.plan.NetNS)
	if err != nil {
		return // it leads nowhere
	}
	if in.isOthers(ns, a.plan.NetNS, false) {
		a.plan.NetNS = ""
	}
	_ = ns.Close() // was only looked at
}

// unrecorded are the attachments in libcni's cache, for a GC that judges those without a
// record. Either their records were lost, or another program has attached them.
type unrecorded struct {
	eng  *Engine
	host *container.Host
	all  []*libcni.NetworkAttachment
}

// stays reports whether an attachment that is in an earlier version's ledger and on no
// record must stay, because libcni's cache has it. left is the report's text for it. An
// attachment that once left nothing behind is gone: the cache has another program's.
func (u *unrecorded) stays(key leftovers.Key, known leftovers.Known) (left []string, stays bool) {
	i := slices.IndexFunc(u.all, func(c *libcni.NetworkAttachment) bool { return leftovers.KeyOf(c) == key })
	if i < 0 {
		return nil, false
	}
	if known.Gone {
		return nil, true
	}
	lives, ended, err := u.judge(u.all[i])
	if ended && err == nil {
		return nil, false
	}
	return []string{isLeft(key, lives, false, err)}, true
}

// ended returns a line for each attachment that only libcni's cache has, unless it lives. Nobody
// but the cache says whose it was, so it stays.
func (u *unrecorded) ended(isKnown func(leftovers.Key) bool) (left []string) {
	for _, c := range u.all {
		if key := leftovers.KeyOf(c); !isKnown(key) {
			if lives, ended, err := u.judge(c); !lives || err != nil {
				left = append(left, isLeft(key, lives, ended, err))
			}
		}
	}
	return left
}

// isLeft returns the report's line about an attachment that stays.
func isLeft(key leftovers.Key, lives, ended bool, err error) string {
	why := "nothing shows whether it lives"
	switch {
	case err != nil:
		why = fmt.Sprintf("it is not known whether it lives: %v", err)
	case lives:
		why = "it lives"
	case ended:
		why = "its interfaces are gone"
	}
	return fmt.Sprintf("%s %s on network %q: it is on no record, but in libcni's cache, perhaps by another program, and %s; "+
		"call Remove if the container is gone", key.ContainerID, key.IfName, key.Network, why)
}

// judge looks for a cached attachment in its namespace and on the host.
func (u *unrecorded) judge(c *libcni.NetworkAttachment) (lives, ended bool, err error) {
	list, err := conflist.Parse(c.Config)
	if err != nil {
		return false, false, fmt.Errorf("its cached configuration: %w", err)
	}
	cached := chain.CachedAs(u.eng.opts.StateDir, c.Network, c.ContainerID, c.IfName)
	cached.List = list
	return container.Remains(u.host, c.NetNS, record.Attachment{
		Network: c.Network, IfName: c.IfName, Result: json.RawMessage(cached.Result()),
	})
}

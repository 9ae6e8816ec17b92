package cni

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/embedcni/cni/internal/container"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/runner"
	"github.com/embedcni/cni/internal/tenant"
	"github.com/embedcni/cni/netns"
)

// clearDead refuses to attach interfaces that are attached. It first removes the
// leftovers of an attachment that has died: its namespace is gone or replaced,
// or the interface in it is gone, as after a reboot or a crash. Meanwhile the
// container is where its record says.
func (op *operation) clearDead(ctx context.Context) error {
	wanted := op.Depart()
	defer func() {
		op.Return(wanted)
		op.endRemoval()
	}()
	earlier, err := op.recallAttached(wanted)
	if err != nil {
		return err
	}
	if len(earlier) == 0 && op.Record == nil {
		return nil
	}
	dead, err := op.deadOf(earlier, wanted)
	if err != nil || len(dead) == 0 && len(earlier) > 0 {
		return err
	}
	op.logger.Info("removing an earlier attachment", "container", op.ID)
	if err := op.tearDown(context.WithoutCancel(ctx), dead); err != nil {
		return fmt.Errorf("remove an earlier attachment: %w", err)
	}
	return nil
}

// deadOf returns the earlier attachments to remove: all if all are dead, or else
// the dead ones under interface names that this call wants. It refuses interface
// names of live attachments, and another namespace than theirs.
func (op *operation) deadOf(earlier []*attachment, wanted container.Place) ([]*attachment, error) {
	wants := op.attachments.names()
	var dead []*attachment
	for _, a := range earlier {
		live, err := a.isAlive(earlier)
		if err != nil {
			return nil, fmt.Errorf("look up interface %s of network %q: %w", a.IfName, a.network.config.Name, err)
		}
		if !live && (wants[a.IfName] || !op.leaves(a)) {
			dead = append(dead, a)
			continue
		}
		// Adding to a damaged record would lose its illegible part.
		if wants[a.IfName] || op.Damaged {
			return nil, fmt.Errorf("interface %s of network %q in %s: %w; call Remove first",
				a.IfName, a.network.config.Name, a.NetNS, ErrAlreadyAttached)
		}
		if err := op.SameNetNS(wanted.Path); err != nil {
			return nil, err
		}
	}
	if len(dead) < len(earlier) { // this call adds to the others, which are alive
		dead = slices.DeleteFunc(dead, func(a *attachment) bool { return !wants[a.IfName] })
	}
	return dead, nil
}

// leaves reports whether an attachment stays although its interface is gone:
// another owner made it, in a live namespace, and may know why.
func (op *operation) leaves(a *attachment) bool {
	return op.Record != nil && !op.Damaged && a.NetNS != "" && !op.IsAbandoned() && !a.own()
}

// refuseTaken refuses to make an interface that exists but is not on this
// container's record, for example because the path leads to another container's
// namespace by now. The ADD could only fail, and the DEL that undoes it would
// delete the other interface.
func (op *operation) refuseTaken() error {
	for _, a := range op.attachments {
		if !a.network.makesInterface() {
			continue
		}
		taken, err := op.HasLink(a.IfName)
		if err != nil {
			return fmt.Errorf("look up interface %s in %s: %w", a.IfName, a.NetNS, err)
		}
		if taken {
			return fmt.Errorf("interface %s of network %q: there is one in %s that is not of this container's record: %w",
				a.IfName, a.network.config.Name, a.NetNS, ErrAlreadyAttached)
		}
	}
	return nil
}

// first returns the type of the first plugin, which may make the interface.
func (n *Network) first() string { return n.config.Plugins[0].Network.Type }

// makesInterface reports whether the first plugin makes the interface. Others
// accept an existing one.
func (n *Network) makesInterface() bool { return known.Of(n.first()).Makes.IsNew() }

// entersContainer reports whether an ADD needs a socket in the container.
func (n *Network) entersContainer() bool {
	if n.makesInterface() {
		return true
	}
	p, err := n.snapshot.runner.Find(n.first())
	return err == nil && p.Kind == runner.BuiltIn
}

// isAlive reports whether an attachment is alive: its namespace exists and has the
// interface. Every namespace has a loopback interface, so lo is alive if an
// attachment of the same Setup is, or without one if the namespace exists.
func (a *attachment) isAlive(all []*attachment) (bool, error) {
	ifName := ""
	if a.described().MadeInterface() { // an interface that was never made cannot be missing
		ifName = a.IfName
	}
	live, err := a.op.Lives(a.NetNS, ifName)
	if a.IfName != "lo" || !live || err != nil {
		return live, err
	}
	alone := true
	for _, other := range all {
		if other.IfName == "lo" {
			continue
		}
		alone = false
		if live, err := other.isAlive(nil); live || err != nil {
			return live, err
		}
	}
	return alone, nil
}

// recallAttached finds the container's attachments in its record or, without
// one, in libcni's cache.
func (op *operation) recallAttached(wanted container.Place) ([]*attachment, error) {
	damage, err := op.load()
	switch {
	case err != nil:
		return nil, err
	case damage != nil:
		// The loaded networks and the namespace to attach show whether it is
		// alive, and if not its leftovers.
		op.logger.Warn("attachment record cannot be read", "container", op.ID, "error", damage)
		return op.unrecorded(&Namespace{id: op.ID, path: wanted.Path}, nil, false)
	case op.Record != nil:
		return op.enterRecorded(false)
	}
	all, err := op.existing(wanted)
	for _, a := range all {
		a.avoidOthers()
	}
	return all, err
}

// existing returns this container's attachments in libcni's cache, on any loaded
// network, that have a wanted interface name. The specification requires the
// pair of container and interface name to be unique.
func (op *operation) existing(at container.Place) ([]*attachment, error) {
	var found []*attachment
	for _, wanted := range op.attachments {
		for _, n := range op.networks {
			if op.shared(n) && n != op.cachedAs(n.config.Name, wanted.IfName) {
				continue // the cache has one entry for that name and interface
			}
			a := &attachment{op: op, network: n}
			a.ContainerID, a.IfName = string(op.PluginID()), wanted.IfName
			known, err := a.recall(at)
			if err != nil {
				return nil, err
			}
			if known {
				a.useCachedConfig()
				found = append(found, a)
			}
		}
	}
	return found, nil
}

// recall fills in the cached data of an attachment in the namespace to attach.
func (a *attachment) recall(at container.Place) (known bool, err error) {
	cached, err := a.cached().Load()
	if err != nil {
		// There is an entry, but it is unreadable: the container's namespace must
		// show whether it is alive.
		a.op.logger.Warn("cached attachment cannot be read", "container", a.ContainerID,
			"network", a.network.config.Name, "error", err)
		a.NetNS = at.Path
		return true, nil
	}
	if cached == nil {
		return false, nil
	}
	a.Attachment = *cached
	if a.NetNS, err = a.cached().NetNS(); err != nil {
		return false, err
	}
	a.NetNS, err = a.op.Host.Validate(a.NetNS, "DEL")
	if errors.Is(err, ErrInvalidNetNS) {
		// The path leads to the host's namespace by now, for example a
		// /proc/PID/ns/net whose PID now belongs to a process of the host: the
		// container's is gone.
		a.NetNS, err = "", nil
	}
	return true, err
}

// avoidOthers makes the operation go on as if no path were given if the given path
// leads to another container's namespace: the other container keeps its interfaces,
// and the operation's own ended with their namespace. It is for removals without a
// record, which have nothing but the path to go by.
func (op *operation) avoidOthers() {
	if op.NetNS == nil || tenant.Untouched(op.Host, op.NetNS) && !op.Pins.Holds(op.NetNS) ||
		!op.isOthers(op.NetNS, op.Path, true) {
		return
	}
	op.Leave()
	op.Path = ""
}

// isOthers reports whether a namespace is another container's. It reads all records,
// so calls that have a record do not ask. With doubts it returns true unless the
// answer is certain.
func (op *operation) isOthers(ns *netns.Handle, path string, doubts bool) bool {
	boot, err := op.BootID()
	other := ""
	if err == nil {
		other, err = tenant.Search{
			ID: op.ID, PluginID: op.PluginID(), Boot: boot,
			Records: op.Records, CacheDir: op.stateDir, Host: op.Host, Pin: op.Pins.File,
		}.Other(ns, doubts)
	}
	if other == "" && (err == nil || !doubts) {
		return false
	}
	op.logger.Warn("the network namespace is not entered, since it is or may be another container's by now",
		"container", op.ID, "path", path, "other", other, "error", err)
	return true
}

// avoidOthers empties the attachment's path if it leads to another container's
// namespace for certain: for Setup, an attachment without a path is dead.
func (a *attachment) avoidOthers() {
	if a.NetNS == "" {
		return
	}
	ns, err := netns.Open(a.NetNS)
	if err != nil {
		return // it leads nowhere
	}
	if a.op.isOthers(ns, a.NetNS, false) {
		a.NetNS = ""
	}
	_ = ns.Close() // was only looked at
}

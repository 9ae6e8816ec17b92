package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/conflist"
	"github.com/embedcni/cni/internal/record"
)

// write puts on disk what is about to be attached, and pins the container's
// namespace, before the first plugin runs. Attachments that the container has
// already, under other interface names, stay in the record.
func (op *operation) write(ctx context.Context) error {
	if err := op.sameHost(); err != nil {
		return err
	}
	id, err := op.bootID()
	if err != nil {
		return err
	}
	self, err := op.identity()
	if err != nil {
		return err
	}
	rec := &record.Record{
		Runtime: self, Life: op.life(), PIDNS: op.pidNS,
		ContainerID: op.id, Owner: op.owner, Boot: id, Host: op.host.String(), HostPath: op.hosts.PathTo(op.host, op.hostNetNS), Since: time.Now().UTC(),
		PluginID: op.as, Warm: op.warm,
	}
	if op.rec != nil {
		rec.Since, rec.Generation, rec.PluginID = op.rec.Since, op.rec.Generation, op.rec.PluginID
		for _, n := range op.rec.Networks {
			if n.State != record.Deleted {
				rec.Networks = append(rec.Networks, n)
			}
		}
		if len(rec.Networks) > 0 {
			rec.Owner = op.rec.Owner // earlier versions know no other
		}
	}
	for _, a := range op.attachments {
		n, err := a.recorded(ctx)
		if err != nil {
			return err
		}
		n.Call = rec.Generation + 1 // what Begin makes it
		if op.owner != rec.Owner {
			n.Owner = op.owner
		}
		rec.Networks = append(rec.Networks, n)
	}
	if rec.NetNS, err = op.identify(); err != nil {
		return err
	}
	if op.rec != nil {
		rec.Inherit(op.rec)
	}
	op.enter(op.attachments)
	if op.startsEarly() {
		op.pending, err = op.records.BeginSoon(rec)
	} else {
		err = op.records.Begin(rec)
	}
	if err != nil {
		return err
	}
	op.rec = rec
	if err := op.pin(rec.NetNS); err != nil {
		return join(err, leftover(op.id, op.forget(op.attachments)))
	}
	return nil
}

// startsEarly reports whether all first plugins can start before the record is
// durable. A container of a pool is on record as that, durably, until its own record
// is, and its end can be found from there.
func (op *operation) startsEarly() bool {
	return op.as != "" || !slices.ContainsFunc(op.attachments, func(a *attachment) bool { return !a.runner().StartsInKernel() })
}

// recorded is all that the attachment's plugins are given, and which they are.
func (a *attachment) recorded(ctx context.Context) (record.Network, error) {
	a.runner().Choose(ctx)
	n := record.Network{Name: a.network.config.Name, IfName: a.IfName, Args: a.Args, Plugins: a.plugins.Recorded()}
	var err error
	n.Result, n.Facts = json.RawMessage(a.part.Result), a.facts.all()
	if n.Config, err = conflist.Whole(a.network.config); err != nil {
		return n, err
	}
	if n.Capabilities, err = rawMap(a.CapabilityArgs); err != nil {
		return n, fmt.Errorf("network %q: capability %w", n.Name, err)
	}
	if n.ConfigArgs, err = rawMap(a.ConfigArgs); err != nil {
		return n, fmt.Errorf("network %q: args.cni.%w", n.Name, err)
	}
	return n, nil
}

func rawMap(values map[string]any) (map[string]json.RawMessage, error) {
	if len(values) == 0 {
		return nil, nil
	}
	raw := make(map[string]json.RawMessage, len(values))
	for key, value := range values {
		data, err := json.Marshal(value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w: %w", key, err, ErrInvalidArgument)
		}
		raw[key] = data
	}
	return raw, nil
}

// Append adds an entry about the attachment to the record. It is [runner.Attachment]'s.
func (a *attachment) Append(e record.Entry) error {
	if a.op.rec == nil {
		return nil
	}
	e.IfName = a.IfName
	return a.op.records.Append(a.op.rec, e)
}

// noteResult adds the result so far, unless it is what the plugin before has left.
func (a *attachment) noteResult(result json.RawMessage) error {
	if bytes.Equal(a.noted, result) {
		return nil
	}
	err := a.Append(record.Entry{Result: result})
	if err == nil {
		a.noted = result
	}
	a.claimResult(result)
	return err
}

// recall finds what the container is attached to, for a call that needs no
// configuration: from its record; for a container that was attached without
// one, by go-cni, from libcni's cache and the loaded networks.
func (op *operation) recall(ns *Namespace) error {
	rec, err := op.loadRecord(op.id)
	if err != nil && !errors.Is(err, record.ErrBad) {
		return err
	}
	if err != nil {
		// Damaged: what is left of it joins what the other sources say.
		op.logger.Warn("removing without a whole record", "container", op.id, "error", err)
		op.rec, op.damaged = rec, true
		return op.recallWithout(ns)
	}
	if rec == nil {
		return op.recallWithout(ns)
	}
	op.rec = rec
	if err := op.enterRecorded(); err != nil {
		return err
	}
	if op.attachments, err = op.fromRecord(rec); err != nil {
		return err
	}
	return op.narrow(ns)
}

// pluginID is the container's ID as plugins know it.
func (op *operation) pluginID() record.PluginID {
	if op.rec != nil && op.rec.PluginID != "" {
		return op.rec.PluginID
	}
	return record.PluginID(op.id)
}

// enterRecorded opens the recorded namespace where it is found now, if it is.
// After a reboot it is gone, whatever the path leads to: another namespace may
// have been given the same number.
func (op *operation) enterRecorded() error {
	op.leave()
	op.path, op.reached = "", notReached
	now, err := op.bootID()
	if err != nil {
		return err
	}
	if op.rebooted = op.rec.Boot != now; op.rebooted {
		return nil
	}
	op.container, op.path, op.reached, err = openRecorded(op.host, op.rec, op.kept.openPath(op.id))
	if err != nil {
		return err
	}
	if err := op.enterHost(op.rec); err != nil {
		return err
	}
	if err := op.settleLetGo(); err != nil {
		return err
	}
	if unknown := op.uncertain(); unknown != nil {
		op.logger.Warn("nothing is done inside the container's network namespace", "container", op.id, "reason", unknown)
	}
	return nil
}

// narrow leaves only the attachments that the call selects.
func (op *operation) narrow(ns *Namespace) error {
	if len(ns.selected) == 0 {
		return nil
	}
	var kept []*attachment
	for _, sel := range ns.selected {
		found := false
		for _, a := range op.attachments {
			if op.means(sel, a) {
				kept = append(kept, a)
				found = true
			}
		}
		if _, err := op.find(sel.network); !found && err != nil {
			return err
		}
	}
	op.attachments = kept
	return nil
}

// fromRecord makes the attachments of a record, with the configuration they
// were made with, whatever is loaded now.
func (op *operation) fromRecord(rec *record.Record) ([]*attachment, error) {
	var attachments []*attachment
	for _, n := range rec.Networks {
		if n.State == record.Deleted {
			continue
		}
		list, err := conflist.Parse(n.Config)
		if err != nil {
			return nil, fmt.Errorf("recorded configuration of network %q: %w: %w", n.Name, err, ErrInvalidConfig)
		}
		a := &attachment{op: op, network: &Network{config: list, ifName: n.IfName, snapshot: op.snapshot}}
		a.state, a.partial = n.State, chain.Partial(n.Result)
		a.facts.set(n.Facts)
		a.plugins.Reset(n.Plugins, n.NeverRan)
		a.RuntimeConf = libcni.RuntimeConf{
			ContainerID: string(rec.Plugins()), NetNS: op.path, IfName: n.IfName,
			Args: n.Args, CapabilityArgs: anyMap(n.Capabilities),
		}
		a.ConfigArgs = anyMap(n.ConfigArgs)
		attachments = append(attachments, a)
	}
	return attachments, nil
}

func anyMap(raw map[string]json.RawMessage) map[string]any {
	values := make(map[string]any, len(raw))
	for key, value := range raw {
		values[key] = value
	}
	return values
}

// recallWithout makes attachments without a whole record: those that libcni
// has cached for the container, with the configuration cached with them, and
// the loaded networks that it has not, since a plugin may have been killed
// before anything was cached. A DEL of what was never added does nothing.
func (op *operation) recallWithout(ns *Namespace) (err error) {
	path := ns.path
	if path == "" && op.damaged {
		if path, err = op.kept.where(op.id); err != nil {
			return err
		}
	}
	op.leave()
	if op.container, op.path, err = op.host.OpenContainer(path, "DEL"); err != nil {
		return err
	}
	if op.asked && ns.path != "" { // Recover and Setup ask whether it lives there
		op.avoidOthers()
	}
	if err := op.plan(ns); err != nil {
		return err
	}
	for _, a := range op.attachments {
		a.NetNS, a.ContainerID = op.path, string(op.pluginID())
		a.useCached()
		a.useCachedConfig()
	}
	if len(ns.selected) == 0 {
		if err := op.addCached(); err != nil {
			return err
		}
	}
	for _, a := range op.attachments {
		// The sweep wants it as much as the plugins do, and a DEL that succeeds
		// deletes it from the cache.
		a.partial = a.chain().CachedResult(&a.Attachment)
		if op.rec == nil {
			continue
		}
		if n := op.rec.Find(a.IfName); n != nil && n.Result != nil {
			a.partial = chain.Partial(n.Result)
		}
	}
	return nil
}

// addCached adds the attachments that libcni's cache has for the container on
// networks that are not loaded, or under other interface names.
func (op *operation) addCached() error {
	cached, err := chain.AllCached(op.stateDir, string(op.pluginID()))
	if err != nil {
		return err
	}
	for _, c := range cached {
		if op.has(c.Network, c.IfName) {
			continue
		}
		list, err := conflist.Parse(c.Config)
		if err != nil || len(list.Plugins) == 0 {
			op.logger.Warn("cached configuration cannot be used", "container", op.id, "network", c.Network, "error", err)
			continue
		}
		a := &attachment{op: op, network: &Network{config: list, ifName: c.IfName, snapshot: op.snapshot}}
		a.ContainerID, a.IfName, a.NetNS = c.ContainerID, c.IfName, op.path
		a.useCached()
		op.attachments = append(op.attachments, a)
	}
	return nil
}

func (op *operation) has(network, ifName string) bool {
	for _, a := range op.attachments {
		if a.network.config.Name == network && a.IfName == ifName {
			return true
		}
	}
	return false
}

// forget takes the attachments out of the record: they are gone. With the last
// one the record goes, and the namespace is let go.
func (op *operation) forget(attachments []*attachment) error {
	if op.rec == nil {
		return op.erase() // a damaged one may lie there
	}
	op.ledgerSafe(attachments)
	op.enterGone(attachments)
	gone := map[string]bool{}
	for _, a := range attachments {
		gone[a.IfName] = true
	}
	left := 0
	for _, n := range op.rec.Networks {
		if n.State != record.Deleted && !gone[n.IfName] {
			left++
		}
	}
	if left == 0 || op.damaged {
		err := op.erase()
		op.rec = nil
		return err
	}
	var errs []error
	for _, a := range attachments {
		errs = append(errs, a.Append(record.Entry{State: record.Deleted}))
		// The record is not read again: if that failed, the next one would be
		// written without the attachments that stay.
		if n := op.rec.Find(a.IfName); n != nil {
			n.State = record.Deleted
		}
	}
	return join(errs...)
}

// erase lets the namespace go and deletes the record, in this order, so that a
// crash or a failure in between leaves a record, not a pin that nobody knows of.
func (op *operation) erase() error {
	if err := op.unpin(); err != nil {
		return err
	}
	if op.rec != nil && op.rec.NetNS.Ours {
		if err := removeOurs(op.rec.NetNS); err != nil {
			return err
		}
	}
	if err := op.records.Delete(op.id); err != nil {
		return err
	}
	if id := record.ID(op.pluginID()); id != op.id { // as which it was on record until this record had reached the disk
		return op.records.Delete(id)
	}
	return nil
}

// keep notes that the attachments could not be detached; the record stays for
// the next Remove, Recover or GC.
func (op *operation) keep(ctx context.Context, attachments []*attachment, why *LeftoverError) {
	for _, a := range attachments {
		a.settle(ctx)
		if err := a.Append(record.Entry{Error: why.why()}); err != nil {
			op.logger.Error("note a failure in the record", "container", op.id, "error", err)
		}
	}
}

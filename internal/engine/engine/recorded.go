package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/engine/leftovers"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/outcome"
)

// write records the attachments on the disk, and pins the container's namespace,
// before the first plugin runs. The container's earlier attachments, under other
// interface names, stay in the record.
func (s *setup) write(ctx context.Context) error {
	rec, err := s.op.c.NewRecord(s.op.eng.opts.Owner)
	if err != nil {
		return err
	}
	for _, a := range s.op.attachments {
		n, err := newEntry(ctx, a)
		if err != nil {
			return err
		}
		n.Call = rec.Generation + 1 // as Begin sets it
		if s.op.eng.opts.Owner != rec.Owner {
			n.Owner = s.op.eng.opts.Owner
		}
		rec.Attachments = append(rec.Attachments, n)
	}
	s.noteTimes(rec)
	r := &reservation{op: s.op, rec: rec, survives: s.survival(ctx)}
	if err := r.begin(ctx); err != nil {
		return err
	}
	s.warnings = r.warnings
	if err := s.op.c.Pin(); err != nil {
		return Join(err, leftover(s.op.c.Recorded.ID, s.op.forget(s.op.attachments)))
	}
	return nil
}

// survival returns when the record must survive a power cut. A plugin may start before
// it does, if a power cut undoes the plugin's work.
//
// A power cut leaves nothing of plugins that write no file. A torn record may leave a file in
// libcni's cache, which Recover finds by the record's name; see deleteIllegible.
func (s *setup) survival(ctx context.Context) record.Survival {
	switch {
	case s.op.c.OutlivesPowerCut():
		return record.AtOnce
	case slices.ContainsFunc(s.op.attachments, func(a *attachment) bool { return !isPassing(ctx, a) }):
		return record.Soon
	}
	return record.Never
}

// isPassing reports whether the record of an attachment need not survive a power cut,
// which undoes all that the plugins make: nobody else relies on it.
func isPassing(ctx context.Context, a *attachment) bool {
	return len(a.plan.Metadata) == 0 && len(a.plan.hostPorts()) == 0 && a.runner().StaysInKernel(ctx)
}

// newEntry returns all parameters of the attachment's plugins for the record, and the
// plugins that run.
func newEntry(ctx context.Context, a *attachment) (record.Attachment, error) {
	a.runner().Choose(ctx)
	n := record.Attachment{
		Network: a.plan.Network.Config.Name, IfName: a.plan.IfName, Args: a.plan.Args, Plugins: a.plugins.Recorded(), Metadata: a.plan.Metadata,
	}
	var err error
	n.Result, n.Facts = json.RawMessage(a.plan.Prev), a.facts.All()
	n.OwnConfig, n.PrevResult, n.PluginDirs = a.plan.OwnConfig, json.RawMessage(a.plan.Prev), a.plan.Dirs
	if n.Config, n.Capabilities, n.ConfigArgs, err = a.plan.Encoded(); err != nil {
		return n, err
	}
	return n, a.plan.recordPorts(&n)
}

// Encoded returns the network's configuration, as one list, and the parameters that are JSON.
func (a *Planned) Encoded() (config json.RawMessage, capabilities, configArgs map[string]json.RawMessage, err error) {
	if config, err = conflist.Whole(a.Network.Config); err != nil {
		return nil, nil, nil, err
	}
	if capabilities, err = rawMap(a.CapabilityArgs); err != nil {
		return nil, nil, nil, fmt.Errorf("network %q: capability %w", a.Network.Config.Name, err)
	}
	if configArgs, err = rawMap(a.ConfigArgs); err != nil {
		err = fmt.Errorf("network %q: args.cni.%w", a.Network.Config.Name, err)
	}
	return config, capabilities, configArgs, err
}

func rawMap(values map[string]any) (map[string]json.RawMessage, error) {
	if len(values) == 0 {
		return nil, nil
	}
	raw := make(map[string]json.RawMessage, len(values))
	for key, value := range values {
		data, err := json.Marshal(value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w: %w", key, err, outcome.ErrInvalidArgument)
		}
		raw[key] = data
	}
	return raw, nil
}

// recall finds the attachments of a container to remove in its record, which was
// loaded; without a whole record, see cache. For mustStop see
// [container.Container.EnterHost].
func (op *operation) recall(c *Call, damage error, mustStop bool) (err error) {
	if damage != nil {
		op.log().Warn("removing without a whole record", "error", damage)
	}
	if op.c.Recorded.Record == nil || damage != nil {
		op.attachments, err = cache{op}.attachments(c, mustStop)
		return err
	}
	if op.attachments, err = op.enterRecorded(mustStop); err != nil {
		return err
	}
	return op.narrow(c.Selected)
}

// recallOwn is recall for Recover and GC: it finds only the attachments of this
// owner, and none if the record was deleted meanwhile.
func (op *operation) recallOwn() error {
	damage, err := op.load()
	if err != nil || op.c.Recorded.Record == nil {
		return err
	}
	if err := op.recall(&Call{ID: op.c.Recorded.ID, Planned: plain(op.eng, op.c.Recorded.ID)}, damage, false); err != nil {
		return err
	}
	switch {
	case !op.c.Recorded.Damaged:
		op.attachments = slices.DeleteFunc(op.attachments, func(a *attachment) bool { return !a.own() })
	case op.c.Place.NetNS == nil && op.c.Place.Path != "":
		return fmt.Errorf("the container's network namespace at %s cannot be opened", op.c.Place.Path)
	case op.c.Recorded.Record.Shared() || op.c.Recorded.Record.Owner != "" && op.c.Recorded.Record.Owner != op.eng.opts.Owner:
		return fmt.Errorf("record of container %s: %w", op.c.Recorded.ID, errShared)
	default:
		return op.c.Place.Settle()
	}
	return nil
}

// errShared: a damaged record does not say which attachments are this owner's.
var errShared = errors.New("it is damaged, and has attachments of another owner; call Remove if the container is gone")

// enterRecorded opens the recorded namespaces, and returns the attachments of the
// record.
func (op *operation) enterRecorded(mustStop bool) (attachments, error) {
	if err := op.c.EnterRecorded(mustStop); err != nil {
		return nil, err
	}
	return op.fromRecord()
}

// fromRecord returns the attachments of the record, with the configuration of
// their ADD rather than the loaded one.
func (op *operation) fromRecord() (all attachments, err error) {
	for n := range op.c.Recorded.Record.Present() {
		a, err := op.fromEntry(n)
		if err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	return all, nil
}

func (op *operation) fromEntry(n *record.Attachment) (*attachment, error) {
	list, err := op.eng.parsed.Parse(n.Config)
	if err != nil {
		return nil, fmt.Errorf("recorded configuration of network %q: %w: %w", n.Network, err, outcome.ErrInvalidConfig)
	}
	a := op.attachment(&Network{Config: list, IfName: n.IfName}, n.IfName)
	a.progress.state, a.progress.partial = n.State, chain.Partial(n.Result)
	a.plan.OwnConfig, a.plan.Prev, a.plan.Dirs = n.OwnConfig, chain.Partial(n.PrevResult), n.PluginDirs
	a.facts.Reset(n.Facts)
	a.plugins.Reset(n.Plugins, n.NeverRan)
	a.plan.RuntimeConf = libcni.RuntimeConf{
		ContainerID: string(op.c.Recorded.PluginID()), NetNS: op.c.Place.Path, IfName: n.IfName,
		Args: n.Args, CapabilityArgs: anyMap(n.Capabilities),
	}
	a.plan.ConfigArgs = anyMap(n.ConfigArgs)
	return a, nil
}

func anyMap(raw map[string]json.RawMessage) map[string]any {
	values := make(map[string]any, len(raw))
	for key, value := range raw {
		values[key] = value
	}
	return values
}

// forget removes attachments that are gone from the record. With the last one it
// deletes the record and stops keeping the namespace, or leaves a record of the namespace
// alone; see [container.Container.KeepNetNS].
func (op *operation) forget(gone attachments) error {
	if op.c.Recorded.Record == nil {
		return op.c.Recorded.Erase() // there may be a damaged one
	}
	op.settleReleases(gone)
	var errs []error
	stays := !op.c.Recorded.Damaged && op.c.Recorded.Record.HasOthers(gone.names())
	if !stays {
		err := op.c.Recorded.Erase()
		if err == nil {
			forgetHolds(op, gone)
		}
		if !op.c.Recorded.Keeps {
			op.c.Recorded.Record = nil
			return err
		}
		errs = append(errs, err)
	}
	for _, a := range gone {
		if stays {
			errs = append(errs, a.append(record.Entry{State: record.Deleted}))
		}
		// The record is not read again: if that failed, the next record would lack the
		// remaining attachments; and another record of the container must not have these.
		if n := a.entry(); n != nil {
			n.State = record.Deleted
		}
	}
	return Join(errs...)
}

// ledgerOf returns what earlier versions have noted about this owner's attachments.
func ledgerOf(eng *Engine) leftovers.Ledger {
	return leftovers.LedgerOf(eng.Store.Records, eng.opts.Owner)
}

func (a *attachment) key() leftovers.Key {
	return leftovers.Key{ContainerID: record.PluginID(a.plan.ContainerID), Network: a.plan.Network.Config.Name, IfName: a.plan.IfName}
}

// noteTimes notes the time at which attachments are about to be recorded.
func (s *setup) noteTimes(rec *record.Record) {
	var now time.Time
	for _, a := range s.op.attachments {
		if isLoAlone(a.plan.Network.Config.Plugins) {
			continue // lo's attachment holds no address
		}
		if now.IsZero() {
			now = s.op.eng.Store.Records.Now()
		}
		rec.Find(a.plan.IfName).Since = now
	}
}

// settleReleases waits until what was released is on the disk: a power cut must not restore
// a reservation without the record that names its holder. Then no ledger of an earlier
// version needs to name it either.
func (op *operation) settleReleases(gone attachments) {
	if err := op.removal.releases.Wait(); err != nil { // no reason to keep a container attached
		op.log().Warn("sync the release of addresses", "error", err)
	}
	var keys []leftovers.Key
	for _, a := range gone {
		keys = append(keys, a.key())
	}
	if err := ledgerOf(op.eng).Forget(keys); err != nil {
		op.log().Warn("note a removal in the ledger of an earlier version", "error", err)
	}
}

// forgetHolds deletes the holds of a container that is gone. If that fails, a later
// container of the same ID is not held.
func forgetHolds(op *operation, gone attachments) {
	var networks []string
	for _, a := range gone {
		networks = append(networks, a.plan.Network.Config.Name)
	}
	if err := record.HoldsIn(op.eng.opts.StateDir).Forget(op.c.Recorded.ID, networks...); err != nil {
		op.log().Warn("delete the holds of a removed container", "error", err)
	}
}

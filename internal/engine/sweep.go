package engine

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"

	"github.com/embedcni/cni/internal/container"
	"github.com/embedcni/cni/internal/firewalld"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/leftovers"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/netns"
)

// swept is the outcome of sweeping one attachment: the leftovers that remain, and the
// reason why.
type swept struct {
	left []string
	err  error
}

// sweep removes the attachments' leftovers that the reference plugins leave when
// a DEL fails or is killed, and looks again. An outcome is empty only after verifying
// that nothing of the attachment remains.
func (all attachments) sweep(ctx context.Context) (outcomes []swept, clean bool) {
	outcomes = make([]swept, len(all))
	clean = true
	for i, a := range all {
		o := &outcomes[i]
		o.left, o.err = a.sweep(ctx)
		clean = clean && len(o.left) == 0 && o.err == nil
	}
	if clean && len(all) > 0 {
		outcomes[0].err = all[0].makeAgain(ctx, leftovers.Inherited)
		clean = outcomes[0].err == nil
	}
	return outcomes, clean
}

func (a *attachment) sweep(ctx context.Context) (left []string, err error) {
	if err := netfilter.Leave(hooks{a}); err != nil {
		a.op.log().Warn("note in the record that the attachment leaves its network", "error", err)
	}
	t, done := a.target()
	defer done()
	return leftovers.Sweep(ctx, t, a.op.log())
}

// described returns the attachment as package leftovers takes it.
func (a *attachment) described() *leftovers.Attachment {
	n := a.entry()
	d := &leftovers.Attachment{
		Attachment: a.plan.Attachment, List: a.plan.Network.Config,
		Result: json.RawMessage(a.progress.partial), PrevResult: json.RawMessage(a.plan.Prev), Device: a.facts.Get(leftovers.DeviceFact),
		Ran: a.plugins.Recorded(), IsRegistered: a.op.eng.runner.IsRegistered, Given: a.given, Claims: &a.claims,
		Begun: a.progress.attempted, Added: a.progress.state == record.Added, Recorded: !a.op.c.Damaged && n != nil,
		Rebooted: a.op.c.Rebooted, HostGone: a.op.c.HostGone,
	}
	if n != nil {
		d.Since = n.Since
	}
	return d
}

// target returns the attachment as a target of the sweep. The caller must call
// done.
func (a *attachment) target() (t leftovers.Target, done func()) {
	d := a.described()
	given := a.given()
	t = leftovers.Target{
		Footprint: leftovers.Of(d), Container: a.inside(), Others: a.op.others(a.plan.IfName),
		Firewalld: a.op.eng.runner.Bus, Filters: given.Filters, Conns: given.Conns,
	}
	if !a.op.c.HostGone {
		t.Host = a.op.c.Host.Handle
	}
	// host-local does not sync its files: a power cut leaves empty ones.
	t.How.Thorough = a.progress.state != record.Added || a.op.c.Rebooted || a.op.c.HostGone || t.Rules.AnyPort
	t.How.FilesOnly = a.op.c.HostGone
	t.How.Emptied = d.Emptied(a.op.eng.Store.Records, a.op.eng.ledger(), a.op.log())
	// After a DEL has begun, the interface may be back on the host, and another
	// container may have it.
	t.How.Lost = t.Interface.Device != nil && a.lost && !a.inDoubt()
	var err error
	if note := a.facts.Get(netfilter.SubnetsFact); note != nil {
		noted, err := netfilter.NotedSubnets(note, true)
		if err != nil {
			a.op.log().Warn("the subnets that are forwarded cannot be read", "error", err)
		}
		t.Subnets = append(t.Subnets, slices.DeleteFunc(noted, func(p netip.Prefix) bool { return slices.Contains(t.Subnets, p) })...)
	}
	if t.Before, err = firewalld.Recall(hooks{a}); err != nil {
		// An attachment's own notes are not damaged if its record is not.
		a.op.log().Warn("the addresses that were in firewalld's zones before cannot be read", "error", err)
	}
	if t.Siblings = a.Siblings(); len(t.Siblings.Owners) > 0 {
		t.Own, _ = d.SharedRules() // the sweep finds unknown rules by the addresses
	}
	if t.Container == nil && a.plan.NetNS != "" && t.Host != nil {
		// A namespace that is gone is no reason to stop: its interfaces are gone too.
		if t.Container, _ = netns.Open(a.plan.NetNS); t.Container != nil {
			return t, func() { _ = t.Container.Close() } // was only looked into
		}
	}
	return t, func() {}
}

// others returns the other attachments of the host, for an attachment of the
// container.
func (op *operation) others(ifName string) *leftovers.Others {
	var host string
	if op.c.Host != nil {
		host = op.c.Host.String()
	}
	return &leftovers.Others{
		Records: op.eng.Store.Records, CacheDir: op.eng.opts.StateDir, Host: host, Boot: op.eng.Store.Boot,
		ContainerID: op.c.ID, Plugins: op.c.PluginID(), IfName: ifName, Leaving: op.removal.leaving,
	}
}

// siblings returns the container's other attachments that stay, from the record or,
// without a record, from libcni's cache.
func (a *attachment) siblings() (attachments, error) {
	stays := func(ifName string) bool { return ifName != a.plan.IfName && !a.op.removal.leaving[ifName] }
	var all attachments
	var err error
	if rec := a.op.c.Record; rec != nil && !a.op.c.Damaged {
		// Most attachments have none. The record then need not be parsed.
		if !rec.Has(func(n *record.Attachment) bool { return stays(n.IfName) }) {
			return nil, nil
		}
		all, err = a.op.fromRecord()
	} else {
		all, err = a.op.fromCache()
	}
	return slices.DeleteFunc(slices.Clone(all), func(b *attachment) bool { return !stays(b.plan.IfName) }), err
}

// Siblings returns the addresses, owners and rules of the siblings.
func (a *attachment) Siblings() netfilter.Siblings {
	all, err := a.siblings()
	var described []*leftovers.Attachment
	for _, b := range all {
		described = append(described, b.described())
	}
	s, rerr := leftovers.Siblings(a.plan.Network.Config.Name, described)
	s.Unknown = s.Unknown || err != nil
	if rerr != nil {
		a.op.log().Warn("the rules of another attachment of the container are not known; rules that it may share stay", "network", a.plan.Network.Config.Name, "error", rerr)
	}
	if a.op.c.Damaged {
		s.Addresses = append(s.Addresses, leftovers.AddressesOf(a.op.c.Record.Attachments, a.op.removal.leaving)...)
	}
	return s
}

// makeAgain makes the rules of siblings again that lost selects. It does nothing for a
// container whose namespace is gone.
func (a *attachment) makeAgain(ctx context.Context, lost leftovers.Lost) error {
	recorded := a.op.c.Record != nil && !a.op.c.Damaged
	if lost == nil || a.op.c.HostGone || a.op.c.Host.Handle == nil || recorded && a.op.c.Gone() {
		return nil
	}
	all, err := a.siblings()
	var staying []*leftovers.Attachment
	for _, b := range all {
		if !recorded || b.progress.state == record.Added { // others are being removed, or their ADD will make their rules
			staying = append(staying, b.described())
		}
	}
	err = Join(err, leftovers.MakeAgain(ctx, a.op.c.Host.Handle, staying, lost, a.op.log()))
	if err != nil {
		return a.error("DEL", err)
	}
	return nil
}

// reap requests a scan of all records for abandoned containers, in the background.
// setup reports that Setup requests it.
func (eng *Engine) reap(host *hostns.NetNS, setup bool) {
	if !eng.opts.WithoutReaping {
		eng.abandoned.Request(eng.forAbandoned(), host, setup)
	}
}

func (eng *Engine) forAbandoned() leftovers.Runtime {
	return leftovers.Runtime{Owner: eng.opts.Owner, Boot: eng.Store.Boot, Records: eng.Store.Records, Logger: eng.opts.Logger, Containers: reaper{eng}}
}

// reaper removes abandoned containers.
type reaper struct{ eng *Engine }

// Keeps implements [leftovers.Containers].
func (r reaper) Keeps(id record.ID) bool { return r.eng.Store.Pins.Keeps(id) }

// Tend finishes a removal that Setup or Remove had begun, removes the container if
// its namespace has ended, or else lets go of the namespace.
func (r reaper) Tend(file string, host *hostns.NetNS) (step leftovers.Step, err error) {
	rec, err := r.eng.Store.Records.LoadFile(file)
	if err != nil || rec == nil {
		return step, host.Close() // removed since, or damaged, which Recover reports
	}
	op := &operation{eng: r.eng, c: r.eng.Store.New(rec.ContainerID, host)}
	if locked, err := op.c.TryLock(); !locked { // no look waits for a lock
		return step, Join(err, host.Close())
	}
	defer op.end()
	return r.tend(op, host.ID())
}

// tend is Tend for a container that is locked.
func (r reaper) tend(op *operation, host netns.ID) (step leftovers.Step, err error) {
	if err := op.recallOwn(); err != nil {
		if isSkipped(err) {
			r.eng.opts.Logger.Debug("look for abandoned containers", "error", err)
			return step, nil
		}
		return step, err
	}
	if op.c.Record == nil || op.c.Damaged {
		return step, nil
	}
	if !leftovers.IsAbandoned(op.c.Record, op.eng.opts.Owner, op.eng.Store.Boot) {
		return step, nil
	}
	if going := op.unfinished(); len(going) > 0 {
		return step, op.finishAbandoned(going)
	}
	if op.c.Record.LetGo != nil && op.c.Gone() {
		return step, op.finishAbandoned(op.attachments)
	}
	var all []*leftovers.Attachment
	for _, a := range op.attachments {
		all = append(all, a.described())
	}
	step.Ends, err = leftovers.LetGo(op.c, all, op.eng.opts.Logger)
	step.Again = err == nil && op.c.Host.ID() == host
	return step, err
}

// end removes the abandoned container of a record now. It returns false if the container
// stays as it is on record.
func (r reaper) end(ctx context.Context, of *record.Record, host *hostns.NetNS) (bool, error) {
	return leftovers.End(ctx, host, func(ctx context.Context, host *hostns.NetNS) (step leftovers.Step, err error) {
		at := host.ID()
		op, err := (&operation{eng: r.eng}).open(ctx, of.ContainerID, host, container.Access{})
		if err != nil {
			return step, err
		}
		defer op.end()
		if step, err = r.tend(op, at); err != nil || step.Again {
			return step, err
		}
		now, err := r.eng.Store.Records.Load(of.ContainerID) // it may have been attached again
		step.Ended = err == nil && (now == nil || now.Generation != of.Generation || !now.Since.Equal(of.Since))
		return step, err
	})
}

// mostHolders limits how often one Setup is tried again after it has removed containers
// that had its ports: of several that have one port, it learns of one at a time.
const mostHolders = 8

// withoutHolders repeats an attempt to attach a container after containers that are gone and
// have its ports were removed.
func (eng *Engine) withoutHolders(ctx context.Context, attempt func() (*SetupResult, error)) (result *SetupResult, err error) {
	for range mostHolders {
		if result, err = attempt(); err == nil || !eng.endHolders(ctx, err) {
			break
		}
	}
	return result, err
}

// endHolders removes the containers that have the ports which a Setup was refused, if all
// of them are abandoned; see WithoutReaping. The caller holds no lock: a container is
// locked only while this one is not. It returns false if one of them stays.
func (eng *Engine) endHolders(ctx context.Context, err error) bool {
	var taken *takenPorts
	if eng.opts.WithoutReaping || !errors.As(err, &taken) ||
		slices.ContainsFunc(taken.holders, func(rec *record.Record) bool { return !leftovers.IsAbandoned(rec, eng.opts.Owner, eng.Store.Boot) }) {
		return false
	}
	return !slices.ContainsFunc(taken.holders, func(rec *record.Record) bool { return !eng.endDead(ctx, rec) })
}

// endDead removes a dead container that has ports which another wants. It returns false if
// the container stays.
func (eng *Engine) endDead(ctx context.Context, rec *record.Record) (ended bool) {
	host, err := eng.openHost()
	if err == nil {
		ended, err = reaper{eng}.end(ctx, rec, host)
		err = Join(err, host.Close())
	}
	if err != nil {
		eng.opts.Logger.Warn("remove a container that is gone and has ports that another wants", "container", rec.ContainerID, "error", err)
	}
	return ended
}

// finishAbandoned removes attachments of an abandoned container. It returns nil
// if it is too early to repeat a failed removal.
func (op *operation) finishAbandoned(going []*attachment) error {
	id, path := op.c.ID, op.c.Record.NetNS.Path
	err := op.finish(context.Background(), going)
	if errors.Is(err, errNotYet) {
		return nil
	}
	if err == nil {
		op.eng.opts.Logger.Info("removed an abandoned container", "container", id, "path", path)
	}
	return err
}

package engine

import (
	"context"
	"encoding/json"
	"net/netip"
	"slices"

	"github.com/embedcni/cni/internal/engine/leftovers"
	"github.com/embedcni/cni/internal/kernel/firewalld"
	"github.com/embedcni/cni/internal/kernel/netfilter"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/netns"
)

// described returns the attachment as package leftovers takes it.
func (a *attachment) described() *leftovers.Attachment {
	place := a.op.c.Place
	d := &leftovers.Attachment{
		Params: a.plan.Attachment, Recorded: !a.op.c.Recorded.Damaged && a.entry() != nil, List: a.plan.Network.Config,
		Result: json.RawMessage(a.progress.partial), PrevResult: json.RawMessage(a.plan.Prev), Given: a.given,
		Ran:    leftovers.Ran{Plugins: a.plugins.Recorded(), IsRegistered: a.op.eng.runner.IsRegistered},
		Kernel: leftovers.Kernel{Rebooted: place.Rebooted, HostGone: place.HostGone, Noted: a.facts.Get(leftovers.DeviceFact)},
	}
	if !d.Ran.IsCallers(conflist.Flannel) {
		d.List, d.Kept = conflist.Resolve(d.List, a.plan.ContainerID)
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
	if !a.op.c.Place.HostGone {
		t.Host = a.op.c.Place.Host.Handle
	}
	// host-local does not sync its files: a power cut leaves empty ones.
	t.How.Thorough = a.progress.state != record.Added || a.op.c.Place.Rebooted || a.op.c.Place.HostGone || t.Footprint.Rules.AnyPort
	t.How.FilesOnly = a.op.c.Place.HostGone
	add := leftovers.ADD{Begun: a.progress.attempted, Added: a.progress.state == record.Added}
	if n := a.entry(); n != nil {
		add.Since = n.Since
	}
	t.How.Emptied = d.Emptied(add, a.op.eng.Store.Records, ledgerOf(a.op.eng), a.op.log())
	// After a DEL has begun, the interface may be back on the host, and another
	// container may have it.
	t.How.Lost = t.Footprint.Interface.Device != nil && a.lost && !a.inDoubt()
	var err error
	if note := a.facts.Get(netfilter.SubnetsFact); note != nil {
		noted, err := netfilter.NotedSubnets(note, true)
		if err != nil {
			a.op.log().Warn("the subnets that are forwarded cannot be read", "error", err)
		}
		t.Footprint.Subnets = append(t.Footprint.Subnets, slices.DeleteFunc(noted, func(p netip.Prefix) bool { return slices.Contains(t.Footprint.Subnets, p) })...)
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
	if op.c.Place.Host != nil {
		host = op.c.Place.Host.String()
	}
	return &leftovers.Others{
		Records: op.eng.Store.Records, CacheDir: op.eng.opts.StateDir, Host: host, Boot: op.eng.Store.Boot,
		ContainerID: op.c.Recorded.ID, Plugins: op.c.Recorded.PluginID(), IfName: ifName, Leaving: op.removal.leaving,
	}
}

// siblings returns the container's other attachments that stay, from the record or,
// without a record, from libcni's cache.
func (a *attachment) siblings() (attachments, error) {
	stays := func(ifName string) bool { return ifName != a.plan.IfName && !a.op.removal.leaving[ifName] }
	var all attachments
	var err error
	if rec := a.op.c.Recorded.Record; rec != nil && !a.op.c.Recorded.Damaged {
		// Most attachments have none. The record then need not be parsed.
		if !rec.Has(func(n *record.Attachment) bool { return stays(n.IfName) }) {
			return nil, nil
		}
		all, err = a.op.fromRecord()
	} else {
		all, err = cache{a.op}.all()
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
	if a.op.c.Recorded.Damaged {
		s.Addresses = append(s.Addresses, leftovers.AddressesOf(a.op.c.Recorded.Record.Attachments, a.op.removal.leaving)...)
	}
	return s
}

// makeAgain makes the rules of siblings again that lost selects. It does nothing for a
// container whose namespace is gone.
func (a *attachment) makeAgain(ctx context.Context, lost leftovers.Lost) error {
	recorded := a.op.c.Recorded.Record != nil && !a.op.c.Recorded.Damaged
	if lost == nil || a.op.c.Place.HostGone || a.op.c.Place.Host.Handle == nil || recorded && a.op.c.Place.Gone() {
		return nil
	}
	all, err := a.siblings()
	var staying []*leftovers.Attachment
	for _, b := range all {
		if !recorded || b.progress.state == record.Added { // others are being removed, or their ADD will make their rules
			staying = append(staying, b.described())
		}
	}
	err = Join(err, leftovers.MakeAgain(ctx, a.op.c.Place.Host.Handle, staying, lost, a.op.log()))
	if err != nil {
		return a.error("DEL", err)
	}
	return nil
}

package cni

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/container"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/reconcile"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/spans"
)

// act does what was decided, for several containers at once.
func (c *reconciliation) act(ctx context.Context, expected []Expected, all []Reconciled) {
	var group sync.WaitGroup
	room := make(chan struct{}, atOnce)
	for i := range all {
		one := &all[i]
		if one.Decision == "" {
			continue
		}
		if one.Decision == DecideReport {
			one.Err = one.Health.Err()
			continue
		}
		room <- struct{}{}
		group.Add(1)
		go func() {
			defer func() { <-room; group.Done() }()
			c.one(ctx, expected[i], one)
		}()
	}
	group.Wait()
}

func (c *reconciliation) one(ctx context.Context, e Expected, one *Reconciled) {
	defer func() {
		if v := recover(); v != nil { // in this goroutine it would end the program
			one.Err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	switch {
	case ctx.Err() != nil:
		one.Err = context.Cause(ctx)
	case one.Decision == DecideRepair:
		c.repair(ctx, e, one)
	case one.Decision == DecideReplace:
		one.Result, one.Lost, one.Err = c.runtime.replace(ctx, c.snapshot, c.host, e, c.seen[e.ContainerID])
	default:
		one.Err = fmt.Errorf("decision %q: %w", one.Decision, ErrInvalidArgument)
	}
}

// repair repairs a container that is where it should be.
func (c *reconciliation) repair(ctx context.Context, e Expected, one *Reconciled) {
	if one.Health.State == StateElsewhere {
		one.Err = fmt.Errorf("%w: only a replacement attaches it elsewhere: %w", ErrNotRepairable, one.Health.Reason)
		return
	}
	id := record.ID(e.ContainerID)
	if c.o.Decide != nil {
		one.Repair, one.Err = c.snapshot.repair(ctx, id, c.o.Repair)
	} else {
		one.Repair, one.Err = c.repairUnheld(ctx, id, c.o.Repair)
	}
	if errors.Is(one.Err, errHeld) {
		one.Decision, one.Err = DecideReport, join(one.Err, one.Health.Err())
		return
	}
	if one.Err == nil {
		one.Err = one.Repair.Err()
	}
	rec, err := loadRecord(c.Records, id)
	if err == nil && rec != nil { // it may have been attached again meanwhile
		_, err = c.isAt(rec.NetNS, e.NetNS)
	}
	one.Err = join(one.Err, err)
}

// replacement removes the attachments of a container, and attaches it in the namespace at
// the path that its scheduler names.
type replacement struct {
	*snapshot
	host *hostns.NetNS // where plugins run: that of the caller of Reconcile
	ns   *Namespace
	seen *record.Record // when it was decided; nil if there was none

	before allFormerly // the addresses of what it has removed
}

// replace replaces the attachments of a container, whose record was seen before. It
// returns the addresses that the container had before and has no longer.
func (r *Runtime) replace(ctx context.Context, s *snapshot, host *hostns.NetNS, e Expected, seen *record.Record) (result *Result, lost []netip.Addr, err error) {
	ctx, span := spans.Call(ctx, "cni.Replace", e.ContainerID, e.NetNS)
	defer func() { endCall(span, err) }()
	p := &replacement{snapshot: s, host: host, seen: seen}
	p.ns, err = newNamespace(e.ContainerID, e.NetNS, e.Options...)
	if err := r.usable(s, p.ns); err != nil {
		return nil, nil, err
	}
	if err == nil {
		p.ns.makes = false // its task lives in the one that it has
		result, err = p.run(ctx)
	}
	var now []netip.Addr
	if err != nil {
		err = fmt.Errorf("replace the attachments of container %q: %w", e.ContainerID, err)
	} else {
		for _, n := range result.Networks {
			now = append(now, addrsOf(containerAddresses(n))...)
		}
	}
	return result, reconcile.Lost(p.before.addrs(), now), err
}

// run is repeated, as a Setup is, after containers that are gone and have its ports were
// removed.
func (p *replacement) run(ctx context.Context) (result *Result, err error) {
	for range mostHolders {
		if result, err = p.once(ctx); err == nil || !p.endHolders(ctx, err) {
			break
		}
	}
	return result, err
}

func (p *replacement) once(ctx context.Context) (*Result, error) {
	op, err := p.beginIn(p.ns, "ADD", p.host.Dup)
	if err != nil {
		return nil, err
	}
	defer op.end()
	op.freeAddresses(ctx)
	if err := op.lock(ctx, container.Access{}); err != nil {
		return nil, err
	}
	if err := op.Follow(); err != nil {
		return nil, err
	}
	if err := p.clear(ctx, op); err != nil {
		return nil, err
	}
	for _, a := range op.attachments {
		a.ContainerID = string(op.PluginID())
	}
	if err := op.refuseTaken(); err != nil {
		return nil, err
	}
	return op.attachWith(ctx, p.before)
}

// formerly are the addresses of one of a container's attachments.
type formerly struct {
	network, ifName string
	addresses       []Address
}

type allFormerly []formerly

// addrs returns all addresses but those of loopback.
func (all allFormerly) addrs() (addrs []netip.Addr) {
	for _, f := range all {
		addrs = append(addrs, addrsOf(f.addresses)...)
	}
	return addrs
}

func addrsOf(all []Address) (addrs []netip.Addr) {
	for _, a := range all {
		if ip := a.IP(); ip.IsValid() && !ip.IsLoopback() {
			addrs = append(addrs, ip)
		}
	}
	return addrs
}

// errChanged: the decision was about another state of the container.
var errChanged = fmt.Errorf("it has changed since the verdict: %w", ErrBusy)

// clear removes all attachments of the container, and notes their addresses. It removes
// nothing if the container is not as it was seen, or if the Setup that follows could not
// succeed. Meanwhile the container is where its record says.
func (p *replacement) clear(ctx context.Context, op *operation) error {
	wanted := op.Depart()
	defer func() {
		op.Return(wanted)
		op.endRemoval()
	}()
	all, err := op.recallAttached(ctx, wanted)
	if err != nil {
		return err
	}
	if op.Damaged {
		return fmt.Errorf("its record is damaged; call Remove if the container is gone: %w", record.ErrBad)
	}
	if attached := op.Record != nil && !op.Record.IsEmpty(); (attached || p.seen != nil) && !reflect.DeepEqual(op.Record, p.seen) {
		return errChanged
	}
	if op.Record == nil {
		if len(all) > 0 {
			return fmt.Errorf("interface %s of network %q is in libcni's cache and not on record, since another program attached it: %w; call Remove first",
				all[0].IfName, all[0].network.config.Name, ErrAlreadyAttached)
		}
		return nil
	}
	if err := op.refuseReplacing(all, &wanted); err != nil {
		return err
	}
	if kept, err := op.KeepNetNS(wanted); err != nil || kept && len(all) == 0 {
		return err
	}
	before := formerAddresses(all)
	op.logger.Info("replacing the attachments of a container", "container", op.ID)
	if err := op.tearDown(context.WithoutCancel(ctx), all); err != nil {
		return fmt.Errorf("remove its attachments: %w", err)
	}
	p.seen, p.before = nil, before
	return nil
}

// formerAddresses returns the addresses on record of attachments: those of their ADDs,
// because no IPAM plugin can be asked for others.
func formerAddresses(all attachments) (before allFormerly) {
	for _, a := range all {
		n := a.entry()
		if result := chain.Decode(n.Result); result != nil {
			of := newNetworkResult(source{network: n.Network, ifName: n.IfName, result: result})
			before = append(before, formerly{n.Network, n.IfName, containerAddresses(of)})
		}
	}
	return before
}

// refuseReplacing refuses to remove attachments of a container if they are another
// owner's, or if a wanted interface is there and not among them.
func (op *operation) refuseReplacing(all attachments, wanted *container.Place) error {
	for _, a := range all {
		if !a.own() {
			return fmt.Errorf("interface %s of network %q is of owner %q: %w",
				a.IfName, a.network.config.Name, op.Record.OwnerOf(a.entry()), ErrAlreadyAttached)
		}
	}
	var going map[string]bool
	if op.SameNetNS(wanted.Path) == nil {
		going = all.names()
	}
	for _, a := range op.attachments {
		if !a.network.makesInterface() || going[a.IfName] {
			continue
		}
		taken, err := wanted.HasLink(a.IfName)
		if err != nil {
			return fmt.Errorf("look up interface %s in %s: %w", a.IfName, wanted.Path, err)
		}
		if taken {
			return fmt.Errorf("interface %s of network %q: there is one in %s that is not of this container's record: %w",
				a.IfName, a.network.config.Name, wanted.Path, ErrAlreadyAttached)
		}
	}
	return nil
}

// attachWith attaches the container with the addresses that it had, where a network can
// be asked for them. If that fails, it attaches it with any.
func (op *operation) attachWith(ctx context.Context, before allFormerly) (*Result, error) {
	var asked attachments
	for _, f := range before {
		a := op.attachments.named(f.ifName)
		if a != nil && a.network.config.Name == f.network && a.askFor(f.addresses) {
			asked = append(asked, a)
		}
	}
	result, err := op.tryAll(ctx, false)
	if err == nil || len(asked) == 0 || ctx.Err() != nil || !isUndone(err) {
		return result, err
	}
	op.logger.Warn("attaching a container with other addresses than it had", "container", op.ID, "reason", err)
	for _, a := range asked {
		delete(a.CapabilityArgs, reconcile.Key)
		delete(a.ConfigArgs, reconcile.Key)
	}
	result, again := op.tryAll(ctx, false)
	if again != nil {
		return nil, again
	}
	return result, nil
}

// isUndone reports whether an ADD has failed, and nothing of it is left.
func isUndone(err error) bool {
	return errors.As(err, new(*Error)) && !errors.As(err, new(*rollbackError)) && !errors.As(err, new(*LeftoverError))
}

// askFor has the ADD ask for addresses, unless its caller asks for some. It reports
// whether the network can be asked.
func (a *attachment) askFor(addresses []Address) bool {
	byArgs := slices.ContainsFunc(a.Args, func(arg [2]string) bool { return arg[0] == "IP" || arg[0] == "ip" })
	if byArgs || a.CapabilityArgs[reconcile.Key] != nil || a.ConfigArgs[reconcile.Key] != nil || len(addresses) == 0 {
		return false
	}
	var ips []string
	for _, of := range addresses {
		ips = append(ips, of.Prefix.String())
	}
	registered := a.op.choice.IsRegistered
	switch reconcile.AskFor(a.network.config, func(typ string) bool { return !registered(typ) }) {
	case reconcile.Capability:
		a.CapabilityArgs[reconcile.Key] = ips
	case reconcile.Argument:
		a.ConfigArgs[reconcile.Key] = ips
	default:
		return false
	}
	return true
}

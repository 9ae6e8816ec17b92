package cnitest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/conflist"
	"github.com/embedcni/cni/internal/reconcile"
)

// Reconcile is Runtime.Reconcile of package cni. Two paths are two namespaces. It repairs
// and replaces one container after the other.
func (f *Fake) Reconcile(ctx context.Context, expected []cni.Expected, o cni.ReconcileOptions) (_ *cni.ReconcileReport, err error) {
	defer f.record(FakeCall{Method: "Reconcile"}, &err)
	r := &fakeReconciliation{f: f, o: o, seen: map[string]seenRecord{}}
	report, err := r.run(ctx, expected)
	if err != nil {
		return nil, fmt.Errorf("reconcile: %w", err)
	}
	return report, nil
}

// fakeReconciliation is a Reconcile in progress.
type fakeReconciliation struct {
	f    *Fake
	o    cni.ReconcileOptions
	seen map[string]seenRecord // by container, at its verdict
}

// seenRecord is the state of a container's record.
type seenRecord struct {
	of      *fakeContainer // nil: there was none
	changes int
}

func (h *fakeHost) seen(id string) seenRecord {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c := h.containers[id]; c != nil {
		return seenRecord{c, c.changes}
	}
	return seenRecord{}
}

func (r *fakeReconciliation) run(ctx context.Context, expected []cni.Expected) (*cni.ReconcileReport, error) {
	named := map[string]bool{}
	for _, e := range expected {
		if err := validID(e.ContainerID); err != nil {
			return nil, err
		}
		if named[e.ContainerID] {
			return nil, fmt.Errorf("container %q is named twice: %w", e.ContainerID, cni.ErrInvalidArgument)
		}
		named[e.ContainerID] = true
	}
	verdicts := map[string]cni.Health{}
	for _, e := range expected {
		verdicts[e.ContainerID] = r.verdict(ctx, e)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	report := &cni.ReconcileReport{}
	for _, id := range r.f.h.ids() {
		if mine, _ := r.f.h.recorded(id, func(a *fakeAttachment) bool { return a.owner == r.f.me() && !a.warm }); len(mine) > 0 && !named[id] {
			report.Unexpected = append(report.Unexpected, id)
		}
	}
	for _, e := range expected {
		one := cni.Reconciled{Health: verdicts[e.ContainerID]}
		if one.Health.State != cni.StateHealthy {
			one.Decision = r.decide(one.Health)
		}
		report.Containers = append(report.Containers, one)
	}
	for i, e := range expected {
		r.act(ctx, e, &report.Containers[i])
	}
	return report, nil
}

func (r *fakeReconciliation) decide(h cni.Health) cni.Decision {
	switch {
	case r.o.Decide != nil:
		return r.o.Decide(h)
	case h.State == cni.StateBroken:
		return cni.DecideRepair
	}
	return cni.DecideReport
}

// verdict returns the verdict on a container.
func (r *fakeReconciliation) verdict(ctx context.Context, e cni.Expected) cni.Health {
	h := r.f.h
	r.seen[e.ContainerID] = h.seen(e.ContainerID)
	if c := r.seen[e.ContainerID].of; c != nil {
		if err := h.isAt(c, e.NetNS); err != nil {
			return cni.Health{ContainerID: e.ContainerID, State: cni.StateElsewhere, Reason: err}
		}
	}
	return r.f.health(ctx, e.ContainerID, true, r.o.WithoutCheck, &cni.HealthChecks{})
}

// isAt returns nil if a container that lives is attached in the namespace at the path.
func (h *fakeHost) isAt(c *fakeContainer, path string) error {
	h.mu.Lock()
	dead, netns := c.dead, c.netns
	h.mu.Unlock()
	if dead {
		return nil
	}
	if err := h.validPath(path); err != nil {
		return fmt.Errorf("it is attached in %s: %w", netns, err)
	}
	if netns != path {
		return fmt.Errorf("it is attached in the network namespace %s, and %s leads to another: %w", netns, path, cni.ErrInvalidNetNS)
	}
	return nil
}

// act carries out the decision.
func (r *fakeReconciliation) act(ctx context.Context, e cni.Expected, one *cni.Reconciled) {
	switch {
	case one.Decision == "":
	case one.Decision == cni.DecideReport:
		one.Err = one.Health.Err()
	case ctx.Err() != nil:
		one.Err = context.Cause(ctx)
	case one.Decision == cni.DecideRepair:
		r.repair(ctx, e, one)
	case one.Decision == cni.DecideReplace:
		p := &fakeReplacement{f: r.f, expected: e, seen: r.seen[e.ContainerID]}
		one.Result, one.Err = p.run(ctx)
		one.Lost = p.lost(one.Result)
	default:
		one.Err = fmt.Errorf("decision %q: %w", one.Decision, cni.ErrInvalidArgument)
	}
}

func (r *fakeReconciliation) repair(ctx context.Context, e cni.Expected, one *cni.Reconciled) {
	if one.Health.State == cni.StateElsewhere {
		one.Err = fmt.Errorf("%w: only a replacement attaches it elsewhere: %w", cni.ErrNotRepairable, one.Health.Reason)
		return
	}
	held := false
	all, _ := r.f.h.recorded(e.ContainerID, nil)
	r.f.h.mu.Lock()
	for _, a := range all {
		held = held || r.f.h.isHeld(e.ContainerID, a.Network)
	}
	r.f.h.mu.Unlock()
	if held && r.o.Decide == nil {
		one.Decision, one.Err = cni.DecideReport, errors.Join(errors.New("it is held"), one.Health.Err())
		return
	}
	if one.Repair, one.Err = r.f.repair(ctx, e.ContainerID, r.o.Repair); one.Err == nil {
		one.Err = one.Repair.Err()
	}
	if c := r.f.h.seen(e.ContainerID).of; c != nil { // it may have been attached again meanwhile
		one.Err = join([]error{one.Err, r.f.h.isAt(c, e.NetNS)})
	}
}

// fakeReplacement removes the attachments of a container, and attaches it at the path that
// its scheduler names.
type fakeReplacement struct {
	f        *Fake
	expected cni.Expected
	seen     seenRecord

	before []formerly // the addresses of the attachments that it has removed
}

// formerly are the addresses of a former attachment.
type formerly struct {
	network, ifName string
	prefixes        []netip.Prefix
}

func (p *fakeReplacement) run(ctx context.Context) (*cni.Result, error) {
	plan, err := p.plan()
	if errors.Is(err, cni.ErrCNINotInitialized) {
		return nil, err
	}
	var result *cni.Result
	if err == nil {
		result, err = p.replace(ctx, plan)
	}
	if err != nil {
		return nil, fmt.Errorf("replace the attachments of container %q: %w", p.expected.ContainerID, err)
	}
	return result, nil
}

// plan returns the plan of the Setup.
func (p *fakeReplacement) plan() (*cni.Plan, error) {
	e := p.expected
	plan, err := p.f.conf.Plan(e.ContainerID, e.NetNS, e.Options...)
	if err != nil {
		return nil, unnamed(err)
	}
	plan.NewNetNS = false // its task lives in the one that it has
	return plan, nil
}

func (p *fakeReplacement) replace(ctx context.Context, plan *cni.Plan) (*cni.Result, error) {
	h, id := p.f.h, p.expected.ContainerID
	if err := h.validPath(plan.NetNS); err != nil {
		return nil, err
	}
	unlock, err := h.lock(ctx, id)
	if err != nil {
		return nil, err
	}
	defer unlock()
	s := &fakeSetup{f: p.f, plan: plan, unlock: func() {}}
	if err := p.clear(ctx, s); err != nil {
		return nil, err
	}
	asked, err := p.ask(plan)
	if err != nil {
		return nil, err
	}
	result, err := s.again(ctx, plan)
	if err == nil || !asked || ctx.Err() != nil || !errors.As(err, new(*cni.Error)) || errors.As(err, new(*cni.LeftoverError)) {
		return result, err
	}
	if plan, err = p.plan(); err != nil { // without the addresses
		return nil, err
	}
	return s.again(ctx, plan)
}

// again tries to attach the container, which is locked.
func (s *fakeSetup) again(ctx context.Context, plan *cni.Plan) (*cni.Result, error) {
	s.plan, s.mine = plan, nil
	if err := s.enter(); err != nil {
		return nil, err
	}
	return s.finish(ctx, false)
}

// clear removes all attachments of the container, and notes their addresses, unless the
// container is not as it was seen, or the Setup that follows could not succeed.
func (p *fakeReplacement) clear(ctx context.Context, s *fakeSetup) error {
	h, id := p.f.h, p.expected.ContainerID
	if h.seen(id) != p.seen {
		return fmt.Errorf("it has changed since the verdict: %w", cni.ErrBusy)
	}
	all, _ := h.recorded(id, nil)
	h.mu.Lock()
	err := p.refuse(s, all)
	if c := h.containers[id]; err == nil && c != nil {
		s.keepNetNS(c)
	}
	h.mu.Unlock()
	if err != nil {
		return err
	}
	if err := p.f.tearDown(context.WithoutCancel(ctx), id, all); err != nil {
		return fmt.Errorf("remove its attachments: %w", err)
	}
	return nil
}

// refuse refuses to remove attachments, or notes their addresses. The host is locked.
func (p *fakeReplacement) refuse(s *fakeSetup, all []*fakeAttachment) error {
	h, me := p.f.h, p.f.me()
	if c := h.released[p.expected.ContainerID]; c != nil {
		return fmt.Errorf("interface %s of network %q is in libcni's cache and not on record, since another program attached it: %w; call Remove first",
			c.attachments[0].IfName, c.attachments[0].Network, cni.ErrAlreadyAttached)
	}
	for _, a := range all {
		if a.owner != me {
			return fmt.Errorf("interface %s of network %q is of owner %q: %w", a.IfName, a.Network, a.owner, cni.ErrAlreadyAttached)
		}
	}
	if err := h.refuseTaken(s.plan, nil); err != nil {
		return err
	}
	for _, a := range all {
		var r types100.Result
		if a.result == nil || json.Unmarshal(a.result, &r) != nil {
			continue // it had none
		}
		was := formerly{network: a.Network, ifName: a.IfName}
		for _, addr := range addressesIn(&r) {
			was.prefixes = append(was.prefixes, addr.Prefix)
		}
		p.before = append(p.before, was)
	}
	return nil
}

// ask has the ADDs ask for the addresses that the container had, where its caller asks for
// none. It reports whether one does.
func (p *fakeReplacement) ask(plan *cni.Plan) (asked bool, err error) {
	for _, was := range p.before {
		for i := range plan.Attachments {
			a := &plan.Attachments[i]
			if a.Network != was.network || a.IfName != was.ifName || len(was.prefixes) == 0 || asksItself(a) {
				continue
			}
			list, err := conflist.Parse(a.Config)
			if err != nil {
				return false, err
			}
			ips, err := json.Marshal(was.prefixes)
			if err != nil {
				return false, err
			}
			switch reconcile.AskFor(list, func(string) bool { return true }) {
			case reconcile.Capability:
				a.Capabilities, asked = with(a.Capabilities, ips), true
			case reconcile.Argument:
				a.ConfigArgs, asked = with(a.ConfigArgs, ips), true
			}
		}
	}
	return asked, nil
}

// asksItself reports whether a caller asks for addresses.
func asksItself(a *cni.PlannedAttachment) bool {
	return a.Args["IP"] != "" || a.Args["ip"] != "" || a.Capabilities[reconcile.Key] != nil || a.ConfigArgs[reconcile.Key] != nil
}

func with(all map[string]json.RawMessage, ips json.RawMessage) map[string]json.RawMessage {
	changed := map[string]json.RawMessage{reconcile.Key: ips}
	for name, value := range all {
		changed[name] = value
	}
	return changed
}

// lost returns the addresses that the container had and does not have.
func (p *fakeReplacement) lost(result *cni.Result) []netip.Addr {
	var before, now []netip.Addr
	for _, was := range p.before {
		for _, prefix := range was.prefixes {
			if !prefix.Addr().IsLoopback() {
				before = append(before, prefix.Addr())
			}
		}
	}
	if result != nil {
		for _, n := range result.Networks {
			for _, i := range n.Interfaces {
				for _, addr := range i.Addresses {
					now = append(now, addr.IP())
				}
			}
		}
	}
	return reconcile.Lost(before, now)
}

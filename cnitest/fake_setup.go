package cnitest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/ports"
)

// fakeProgress is the progress of an attachment.
type fakeProgress int

const (
	fakePlanned fakeProgress = iota
	fakeAdded
	fakeDeleting
)

// fakeAttachment is an attachment on record.
type fakeAttachment struct {
	cni.PlannedAttachment
	owner    string
	call     int // which Setup of the container
	progress fakeProgress
	begun    bool   // its ADD
	link     bool   // the container has the interface
	result   []byte // of the ADD, as JSON
	now      []byte // with the addresses that SetAddresses has set; nil: the same
	noted    []byte // as Refresh has noted it; nil: the same
	held     []reserved
	broken   []cni.Difference

	failures  int
	lastTry   time.Time
	lastError string
}

// plugins returns the types of the network's plugins.
func (a *fakeAttachment) plugins() []string {
	var types []string
	for _, p := range a.config() {
		types = append(types, p.Type)
	}
	return types
}

func (a *fakeAttachment) config() []fakePlugin {
	var list struct {
		Plugins []fakePlugin `json:"plugins"`
	}
	if err := json.Unmarshal(a.Config, &list); err != nil || len(list.Plugins) == 0 {
		return []fakePlugin{{}} // fields of other types: the plugins would refuse them
	}
	return list.Plugins
}

// Setup implements cni.CNI.
func (f *Fake) Setup(ctx context.Context, id, path string, opts ...cni.NamespaceOpts) (*cni.Result, error) {
	return f.setup(ctx, "Setup", id, path, opts, false)
}

// SetupSerially implements cni.CNI.
func (f *Fake) SetupSerially(ctx context.Context, id, path string, opts ...cni.NamespaceOpts) (*cni.Result, error) {
	return f.setup(ctx, "SetupSerially", id, path, opts, true)
}

func (f *Fake) setup(ctx context.Context, method, id, path string, opts []cni.NamespaceOpts, serially bool) (_ *cni.Result, err error) {
	call := FakeCall{Method: method, ContainerID: id, NetNS: path}
	defer func() { f.record(call, &err) }()
	plan, err := f.conf.Plan(id, path, opts...)
	if err != nil {
		return nil, err
	}
	call.Plan = plan
	named := func(err error) error { return fmt.Errorf("set up container %q: %w", id, err) }
	if err := f.h.validPath(path); err != nil && !plan.NewNetNS {
		return nil, named(err)
	}
	unlock, err := f.h.lock(ctx, id)
	if err != nil {
		return nil, named(err)
	}
	defer unlock()
	if plan, err = f.h.placed(plan); err != nil {
		return nil, named(err)
	}
	if err := f.clearDead(ctx, plan); err != nil {
		return nil, named(err)
	}
	plan, mine, err := f.h.begin(plan)
	if err != nil {
		return nil, named(err)
	}
	if err := f.add(ctx, id, mine, serially); err != nil {
		return nil, f.rollBack(ctx, id, mine, err)
	}
	f.h.mu.Lock()
	defer f.h.mu.Unlock()
	return f.resultOf(plan, mine)
}

// placed returns the plan with the path of the namespace that Setup makes.
func (h *fakeHost) placed(plan *cni.Plan) (*cni.Plan, error) {
	if !plan.NewNetNS {
		return plan, nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	at, c := *plan, h.containers[plan.ContainerID]
	switch {
	case at.NetNS == "" && c != nil && !c.dead:
		at.NetNS = c.netns
	case at.NetNS == "":
		h.made++
		at.NetNS = fmt.Sprintf("/run/cnitest/%s-%d", plan.ContainerID, h.made)
	case h.exists[at.NetNS] && (c == nil || c.netns != at.NetNS):
		return nil, fmt.Errorf("make network namespace %s: %w: %w", at.NetNS, fs.ErrExist, cni.ErrInvalidNetNS)
	}
	return &at, nil
}

// validPath reports why no container can be attached at a path.
func (h *fakeHost) validPath(path string) error {
	if path == "" {
		return fmt.Errorf("no path given: %w", cni.ErrInvalidNetNS)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gone[path] {
		return fmt.Errorf("%s is gone: %w", path, cni.ErrInvalidNetNS)
	}
	return nil
}

// clearDead removes the leftovers of an earlier attachment, and refuses interfaces that
// are attached.
func (f *Fake) clearDead(ctx context.Context, plan *cni.Plan) error {
	wants := map[string]bool{}
	for _, a := range plan.Attachments {
		wants[a.IfName] = true
	}
	f.h.mu.Lock()
	c := f.h.containers[plan.ContainerID]
	if c == nil {
		f.h.mu.Unlock()
		return nil
	}
	var dead []*fakeAttachment
	var err error
	for _, a := range c.attachments {
		live := !c.dead && a.link
		if !live && (wants[a.IfName] || c.dead || a.owner == plan.Owner) {
			dead = append(dead, a)
			continue
		}
		if wants[a.IfName] {
			err = fmt.Errorf("interface %s of network %q in %s: %w; call Remove first", a.IfName, a.Network, c.netns, cni.ErrAlreadyAttached)
			break
		}
		if c.netns != plan.NetNS {
			err = fmt.Errorf("%s is another namespace than %s, in which the container is attached: %w", plan.NetNS, c.netns, cni.ErrInvalidNetNS)
			break
		}
	}
	if len(dead) < len(c.attachments) { // this call adds to the others, which are alive
		dead = slices.DeleteFunc(dead, func(a *fakeAttachment) bool { return !wants[a.IfName] })
	}
	f.h.mu.Unlock()
	if err != nil || len(dead) == 0 {
		return err
	}
	if err := f.tearDown(ctx, plan.ContainerID, dead); err != nil {
		return fmt.Errorf("remove an earlier attachment: %w", err)
	}
	return nil
}

// begin chooses ports and puts the attachments on record, unless another container has
// one of their ports.
func (h *fakeHost) begin(plan *cni.Plan) (*cni.Plan, []*fakeAttachment, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	plan, err := h.choosePorts(plan)
	if err == nil {
		err = h.refusePorts(plan)
	}
	if err != nil {
		return nil, nil, err
	}
	c := h.containers[plan.ContainerID]
	if c == nil {
		c = &fakeContainer{id: plan.ContainerID, netns: plan.NetNS, made: plan.NewNetNS, since: time.Now()}
		if h.containers[c.id] = c; c.made {
			h.makeNetNS(c.netns)
		}
	}
	c.calls++
	var mine []*fakeAttachment
	for _, a := range plan.Attachments {
		mine = append(mine, &fakeAttachment{PlannedAttachment: a, owner: plan.Owner, call: c.calls})
	}
	c.attachments = append(c.attachments, mine...)
	return plan, mine, nil
}

func claims(a cni.PlannedAttachment) []ports.Claim {
	if len(a.Ports) == 0 {
		return nil
	}
	return ports.Of(a.Capabilities["portMappings"])
}

func (h *fakeHost) refusePorts(plan *cni.Plan) error {
	var errs []error
	for _, wanted := range plan.Attachments {
		for _, want := range claims(wanted) {
			for _, c := range h.containers {
				if c.id == plan.ContainerID {
					continue
				}
				for _, a := range c.attachments {
					for _, has := range claims(a.PlannedAttachment) {
						if has.Overlaps(want) {
							errs = append(errs, &cni.PortError{
								Protocol: want.Protocol, HostIP: want.Addr, HostPort: int(want.Port), HolderIP: has.Addr,
								ContainerID: c.id, Network: a.Network, IfName: a.IfName, Owner: a.owner, State: a.state(), Err: cni.ErrPortInUse,
							})
						}
					}
				}
			}
		}
	}
	return join(errs)
}

// join returns a single error as it is.
func join(errs []error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

// add runs the ADDs. Only serially it stops at the first that fails.
func (f *Fake) add(ctx context.Context, id string, mine []*fakeAttachment, serially bool) error {
	var errs []error
	for _, a := range mine {
		if ctx.Err() != nil {
			errs = append(errs, a.error("ADD", id, "", context.Cause(ctx)))
			continue
		}
		f.h.mu.Lock()
		a.begun = true
		f.h.mu.Unlock()
		err := f.h.fault(ctx, "ADD", id, a)
		f.h.mu.Lock()
		if !a.failedFirst(err) {
			// The plugins before the one that fails have done their work, or failed.
			if failed := f.h.attach(id, a); failed != nil {
				err = failed
			}
		}
		if err == nil {
			a.progress = fakeAdded
		}
		f.h.mu.Unlock()
		if errs = append(errs, err); err != nil && serially {
			break
		}
	}
	return join(errs)
}

// failedFirst reports whether an error is of the network's first plugin.
func (a *fakeAttachment) failedFirst(err error) bool {
	var e *cni.Error
	return errors.As(err, &e) && e.Plugin == a.plugins()[0]
}

// attach gives the container interface and addresses.
func (h *fakeHost) attach(id string, a *fakeAttachment) error {
	first := a.config()[0]
	if first.IPAM.Type != "" {
		held, err := h.ipam.allocate(a, first)
		if err != nil {
			return a.error("ADD", id, first.Type, err)
		}
		a.held = held
	}
	a.link = true
	var err error
	a.result, err = json.Marshal(h.result(h.containers[id].netns, a, first))
	return err
}

// result is the result of the network's plugins.
func (h *fakeHost) result(netns string, a *fakeAttachment, p fakePlugin) *types100.Result {
	r := &types100.Result{CNIVersion: types100.ImplementedSpecVersion, DNS: p.DNS, Routes: p.IPAM.Routes}
	if dns := p.IPAM.DNS; !dns.IsEmpty() {
		r.DNS = dns
	}
	if r.Routes == nil {
		r.Routes = []*types.Route{}
	}
	inside := &types100.Interface{Name: a.IfName, Mac: h.mac(), Sandbox: netns}
	switch p.Type {
	case "loopback":
		inside.Mac = "00:00:00:00:00:00"
		a.held = nil
		r.IPs = []*types100.IPConfig{
			{Interface: types100.Int(0), Address: net.IPNet{IP: net.IPv4(127, 0, 0, 1), Mask: net.CIDRMask(8, 32)}},
			{Interface: types100.Int(0), Address: net.IPNet{IP: net.IPv6loopback, Mask: net.CIDRMask(128, 128)}},
		}
	case "bridge":
		bridge := p.Bridge
		if bridge == "" {
			bridge = "cni0"
		}
		r.Interfaces = []*types100.Interface{{Name: bridge, Mac: h.mac()}, {Name: h.veth(), Mac: h.mac()}}
	case "ptp":
		r.Interfaces = []*types100.Interface{{Name: h.veth(), Mac: h.mac()}}
	}
	r.Interfaces = append(r.Interfaces, inside)
	for _, held := range a.held {
		ip := &types100.IPConfig{Interface: types100.Int(len(r.Interfaces) - 1), Address: ipNet(held.prefix)}
		if held.gateway.IsValid() {
			ip.Gateway = held.gateway.AsSlice()
		}
		r.IPs = append(r.IPs, ip)
		if p.Type == "bridge" && p.IsDefaultGateway {
			all := netip.PrefixFrom(unspecified(held.prefix.Addr()), 0)
			r.Routes = append(slices.Clone(r.Routes), &types.Route{Dst: ipNet(all), GW: held.gateway.AsSlice()})
		}
	}
	return r
}

func unspecified(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// mac and veth return names that no other interface of the host has.
func (h *fakeHost) mac() string {
	h.made++
	return fmt.Sprintf("02:fa:%02x:%02x:%02x:%02x", byte(h.made>>24), byte(h.made>>16), byte(h.made>>8), byte(h.made))
}

func (h *fakeHost) veth() string {
	h.made++
	return fmt.Sprintf("veth%08x", h.made)
}

// rollBack detaches what was begun, and forgets the rest. It returns the error of Setup.
func (f *Fake) rollBack(ctx context.Context, id string, mine []*fakeAttachment, why error) error {
	var begun, never []*fakeAttachment
	f.h.mu.Lock()
	for _, a := range mine {
		if a.begun {
			begun = append(begun, a)
		} else {
			never = append(never, a)
		}
	}
	f.h.forget(id, never)
	f.h.mu.Unlock()
	if len(begun) == 0 {
		return why
	}
	if err := f.tearDown(ctx, id, begun); err != nil {
		return errors.Join(why, fmt.Errorf("roll back: %w", err))
	}
	return why
}

// shown is the result for callers.
func (a *fakeAttachment) shown() []byte {
	if a.noted != nil {
		return a.noted
	}
	return a.result
}

// resultOf returns the result of attachments. The host is locked.
func (f *Fake) resultOf(plan *cni.Plan, all []*fakeAttachment) (*cni.Result, error) {
	var results []*types100.Result
	for _, a := range all {
		var r types100.Result
		if err := json.Unmarshal(a.shown(), &r); err != nil {
			return nil, err
		}
		results = append(results, &r)
	}
	result, err := plan.Result(results)
	if c := f.h.containers[plan.ContainerID]; err == nil && c.made {
		result.NetNS = c.netns
	}
	return result, err
}

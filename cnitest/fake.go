package cnitest

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni"
)

// Fake is a Runtime without a kernel, for tests of what a program makes of results and
// errors. It implements cni.CNI and the verbs below: it validates arguments and
// configurations as a *cni.Runtime does, answers Setup with canned results, fails as
// Inject says, and logs its calls. It knows which containers are attached, and nothing
// else: plugins, records, ports and recovery need a Host.
//
// A program declares an interface of the methods that it calls. A method that Fake lacks
// is a few lines in a struct that embeds it.
//
// A Fake is safe for concurrent use. Create one with [NewFake].
type Fake struct {
	conf *cni.Runtime // validates, and never attaches

	mu       sync.Mutex
	answers  map[string]*types100.Result // by network
	faults   []*Fault
	calls    []FakeCall
	attached map[string]attached // by container ID
	made     int                 // addresses
}

type attached struct {
	plan   *cni.Plan
	result *cni.Result
}

var _ cni.CNI = (*Fake)(nil)

// FakeCall is a call of a Fake's method that has returned.
type FakeCall struct {
	Method      string // "Setup"
	ContainerID string // empty if the call is not about one
	NetNS       string
	Plan        *cni.Plan // of a Setup; nil if the arguments were invalid
	Err         error
}

// Fault has calls fail or wait.
type Fault struct {
	Method      string // "Setup", for example; empty: each
	ContainerID string // empty: each

	// Err is the error of the call. A nil Err lets the call go on after Wait.
	Err error
	// Wait, if set, has the call wait until it is closed or the context of the call ends,
	// whose error is then the call's.
	Wait <-chan struct{}
	// Times is the number of calls that the fault is for; 0 is no limit.
	Times int
}

// NewFake returns a Fake without containers. The options are those of cni.New; those about
// plugins, directories of state and the host have no effect.
func NewFake(opts ...cni.Opt) (*Fake, error) {
	conf, err := cni.New(opts...)
	if err != nil {
		return nil, err
	}
	return &Fake{conf: conf, answers: map[string]*types100.Result{}, attached: map[string]attached{}}, nil
}

// Answer has a network answer each Setup with result. Without one, a network answers with
// its interface and an address of 192.0.2.0/24 (RFC 5737), a different one each time.
func (f *Fake) Answer(network string, result *types100.Result) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answers[network] = result
}

// Inject has calls fail, until remove is called. If several faults are for a call, the
// first one injected counts.
func (f *Fake) Inject(fault Fault) (remove func()) {
	injected := &fault
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = append(f.faults, injected)
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.faults = slices.DeleteFunc(f.faults, func(other *Fault) bool { return other == injected })
	}
}

// Calls returns the calls so far, in the order in which they returned.
func (f *Fake) Calls() []FakeCall {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

// call runs one method: its fault first, then do, with the lock held.
func (f *Fake) call(ctx context.Context, c FakeCall, do func() error) error {
	err := f.fault(ctx, c)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		err = do()
	}
	c.Err = err
	f.calls = append(f.calls, c)
	return err
}

// fault returns the error of the first fault for a call.
func (f *Fake) fault(ctx context.Context, c FakeCall) error {
	f.mu.Lock()
	i := slices.IndexFunc(f.faults, func(one *Fault) bool {
		return (one.Method == "" || one.Method == c.Method) && (one.ContainerID == "" || one.ContainerID == c.ContainerID)
	})
	if i < 0 {
		f.mu.Unlock()
		return nil
	}
	fault := f.faults[i]
	if fault.Times--; fault.Times == 0 {
		f.faults = slices.Delete(f.faults, i, i+1)
	}
	f.mu.Unlock()
	if fault.Wait != nil {
		select {
		case <-fault.Wait:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return fault.Err
}

// Setup implements cni.CNI. A container that is attached is refused with
// cni.ErrAlreadyAttached.
func (f *Fake) Setup(ctx context.Context, id, path string, opts ...cni.NamespaceOpts) (result *cni.Result, err error) {
	return f.setup(ctx, "Setup", id, path, opts)
}

// SetupSerially implements cni.CNI.
func (f *Fake) SetupSerially(ctx context.Context, id, path string, opts ...cni.NamespaceOpts) (*cni.Result, error) {
	return f.setup(ctx, "SetupSerially", id, path, opts)
}

func (f *Fake) setup(ctx context.Context, method, id, path string, opts []cni.NamespaceOpts) (result *cni.Result, err error) {
	plan, invalid := f.conf.Plan(id, path, opts...)
	err = f.call(ctx, FakeCall{Method: method, ContainerID: id, NetNS: path, Plan: plan}, func() error {
		if invalid != nil {
			return invalid
		}
		if _, ok := f.attached[id]; ok {
			return fmt.Errorf("container %q: %w", id, cni.ErrAlreadyAttached)
		}
		var err error
		if result, err = f.result(plan); err == nil {
			f.attached[id] = attached{plan, result}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return result, nil
}

// result converts the answers of the plan's networks.
func (f *Fake) result(plan *cni.Plan) (*cni.Result, error) {
	lists, opts := []*types100.Result{}, []cni.Opt{cni.WithMinNetworkCount(0)}
	for _, a := range plan.Attachments {
		answer := f.answers[a.Network]
		if answer == nil {
			answer = f.canned(a.IfName, plan.NetNS)
		}
		lists = append(lists, answer)
		opts = append(opts, cni.WithConfListBytes(a.Config))
	}
	// The networks of the plan may be fewer than those that are loaded, or others.
	converter, err := cni.New(opts...)
	if err != nil {
		return nil, err
	}
	result, err := converter.GetCNIResultFromResults(lists) //lint:ignore SA1019 nothing is set up here
	if err != nil {
		return nil, err
	}
	for i, n := range result.Networks {
		n.IfName, n.Ports = plan.Attachments[i].IfName, plan.Attachments[i].Ports
	}
	return result, nil
}

// canned is the answer of a network that has no other.
func (f *Fake) canned(ifName, path string) *types100.Result {
	f.made++
	r := &types100.Result{CNIVersion: types100.ImplementedSpecVersion, Interfaces: []*types100.Interface{{
		Name: ifName, Sandbox: path, Mac: fmt.Sprintf("02:00:00:00:%02x:%02x", byte(f.made>>8), byte(f.made)),
	}}}
	addr := net.IPNet{IP: net.IPv4(192, 0, 2, byte(2+(f.made-1)%253)), Mask: net.CIDRMask(24, 32)}
	gateway := net.IPv4(192, 0, 2, 1)
	if ifName == "lo" {
		addr, gateway = net.IPNet{IP: net.IPv4(127, 0, 0, 1), Mask: net.CIDRMask(8, 32)}, nil
	}
	r.IPs = []*types100.IPConfig{{Interface: types100.Int(0), Address: addr, Gateway: gateway}}
	return r
}

// Remove implements cni.CNI. It is no error if the container is not attached.
func (f *Fake) Remove(ctx context.Context, id, path string, _ ...cni.NamespaceOpts) error {
	return f.call(ctx, FakeCall{Method: "Remove", ContainerID: id, NetNS: path}, func() error {
		delete(f.attached, id)
		return nil
	})
}

// Check implements cni.CNI.
func (f *Fake) Check(ctx context.Context, id, path string, _ ...cni.NamespaceOpts) error {
	return f.call(ctx, FakeCall{Method: "Check", ContainerID: id, NetNS: path}, func() error {
		_, err := f.of(id)
		return err
	})
}

func (f *Fake) of(id string) (attached, error) {
	a, ok := f.attached[id]
	if !ok {
		return a, fmt.Errorf("container %q is %w", id, cni.ErrNotAttached)
	}
	return a, nil
}

// Load implements cni.CNI.
func (f *Fake) Load(opts ...cni.Opt) error {
	return f.call(context.Background(), FakeCall{Method: "Load"}, func() error { return f.conf.Load(opts...) })
}

// Status implements cni.CNI. It asks no plugin.
func (f *Fake) Status() error {
	return f.call(context.Background(), FakeCall{Method: "Status"}, func() error {
		_, err := f.conf.Plan("any", "/any")
		return err
	})
}

// GetConfig implements cni.CNI.
func (f *Fake) GetConfig() *cni.ConfigResult { return f.conf.GetConfig() }

// Plan is Runtime.Plan of package cni.
func (f *Fake) Plan(id, path string, opts ...cni.NamespaceOpts) (*cni.Plan, error) {
	return f.conf.Plan(id, path, opts...)
}

// Lookup returns the result of the Setup of an attached container.
func (f *Fake) Lookup(id string) (result *cni.Result, err error) {
	err = f.call(context.Background(), FakeCall{Method: "Lookup", ContainerID: id}, func() error {
		a, err := f.of(id)
		result = a.result
		return err
	})
	return result, err
}

// Attachments lists the attachments, in the order of container IDs; with IDs, those of these
// containers.
func (f *Fake) Attachments(ids ...string) (all []cni.Attachment, err error) {
	err = f.call(context.Background(), FakeCall{Method: "Attachments"}, func() error {
		for _, id := range slices.Sorted(maps.Keys(f.attached)) {
			if len(ids) == 0 || slices.Contains(ids, id) {
				all = append(all, f.attached[id].list()...)
			}
		}
		return nil
	})
	return all, err
}

// list lists the attachments of one container.
func (a attached) list() (all []cni.Attachment) {
	for i, n := range a.result.Networks {
		planned := a.plan.Attachments[i]
		one := cni.Attachment{
			ContainerID: a.plan.ContainerID, Network: n.Name, IfName: n.IfName, NetNS: a.plan.NetNS, Owner: a.plan.Owner,
			State: cni.Attached, Args: planned.Args, Ports: planned.Ports, Metadata: planned.Metadata,
		}
		for _, i := range n.Interfaces {
			one.Addresses = append(one.Addresses, i.Addresses...)
		}
		all = append(all, one)
	}
	return all
}

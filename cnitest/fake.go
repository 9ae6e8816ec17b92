package cnitest

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/embedcni/cni"
)

// Fake is a Runtime without a kernel: it touches no network, no file but configurations,
// and starts no plugin, so it works on every system and without privileges. It behaves as
// a *cni.Runtime does, for Contract tests both: it validates arguments, attaches and
// rolls back, allocates addresses and ports, keeps records, and decides about containers
// in Recover, Reconcile, GC, Health, Repair and Release. It has the methods of a
// *cni.Runtime, see Runtime, and those that change its host as the world does: EndNetNS,
// NewNetNS, Break, Interrupt, SetAddresses, Inject. Calls lists the calls of the program.
//
// All types of plugins exist. Those of IPAM are host-local and static; any other
// allocates from 192.0.2.0/24. A network namespace is a path, which exists unless
// EndNetNS has ended it, or Remove has deleted one that Setup made; code that enters it
// needs a Host instead. Every port of the host is free that no container has.
//
// The options of cni.New that are about plugins, directories of state, timeouts, retries
// or the host have no effect. Nothing is removed in the background, as with
// cni.WithoutReaping.
//
// A Fake is safe for concurrent use. Create one with NewFake.
type Fake struct {
	h    *fakeHost
	conf *cni.Runtime // the configuration
	lax  *cni.Runtime // the same, for calls that need no network

	mu    sync.Mutex
	owner string
}

// FakeCall is a call of a Fake's method.
type FakeCall struct {
	Method      string // "Setup"; of a FakePool "Pool.Setup"
	ContainerID string // empty if the call is not about one
	NetNS       string
	Plan        *cni.Plan // of a Setup, a pool's too; nil if the arguments were invalid
	Err         error
}

// Fault makes a Fake's plugins fail or wait. The first four fields select the calls.
type Fault struct {
	Verb        string // ADD, DEL, CHECK or STATUS; empty: each
	ContainerID string // empty: each
	Network     string // empty: each
	Plugin      string // its type; empty: the last of the network. Those before it succeed

	// Err is the plugin's error; nil if it succeeds. A *types.Error has a code and a
	// message.
	Err error
	// Wait has the plugin answer only when it is closed or, in ADD and CHECK, when the
	// context of the call ends. That is then the error.
	Wait <-chan struct{}
	// Times is the number of calls that fail; 0 is no limit.
	Times int
}

// NewFake returns a Fake on a host without containers. The options are those of cni.New.
func NewFake(opts ...cni.Opt) (*Fake, error) {
	return newFake(newFakeHost(), opts)
}

// Restart returns another Fake on the same host, as the program gets it after a restart,
// or another program.
func (f *Fake) Restart(opts ...cni.Opt) (*Fake, error) { return newFake(f.h, opts) }

func newFake(h *fakeHost, opts []cni.Opt) (*Fake, error) {
	conf, err := cni.New(opts...)
	if err != nil {
		return nil, err
	}
	lax, err := cni.New(append(slices.Clone(opts), cni.WithMinNetworkCount(0))...)
	if err != nil {
		return nil, err
	}
	f := &Fake{h: h, conf: conf, lax: lax, owner: filepath.Base(os.Args[0])}
	f.learnOwner()
	return f, nil
}

// learnOwner keeps the former owner while a network has no name.
func (f *Fake) learnOwner() {
	if p, err := f.lax.Plan("any", ""); err == nil {
		f.mu.Lock()
		f.owner = p.Owner
		f.mu.Unlock()
	}
}

func (f *Fake) me() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.owner
}

// Load implements cni.CNI.
func (f *Fake) Load(opts ...cni.Opt) (err error) {
	defer f.record(FakeCall{Method: "Load"}, &err)
	if err := f.conf.Load(opts...); err != nil {
		return err
	}
	if err := f.lax.Load(append(slices.Clone(opts), cni.WithMinNetworkCount(0))...); err != nil {
		return err
	}
	f.learnOwner()
	return nil
}

// GetConfig implements cni.CNI. All plugins are built in.
func (f *Fake) GetConfig() *cni.ConfigResult {
	config := f.conf.GetConfig()
	for _, n := range config.Networks {
		for _, p := range n.Config.Plugins {
			p.Kind, p.Path = cni.PluginBuiltIn, ""
			if p.Network.IPAM.Type != "" {
				p.IPAMKind = cni.PluginBuiltIn
			}
		}
	}
	return config
}

// Plan is Runtime.Plan of package cni.
func (f *Fake) Plan(id, path string, opts ...cni.NamespaceOpts) (*cni.Plan, error) {
	return f.conf.Plan(id, path, opts...)
}

// Inject makes plugins fail, until remove is called. If several faults are for a call,
// the first one injected counts.
func (f *Fake) Inject(fault Fault) (remove func()) {
	injected := &fault
	f.h.mu.Lock()
	defer f.h.mu.Unlock()
	f.h.faults = append(f.h.faults, injected)
	return func() {
		f.h.mu.Lock()
		defer f.h.mu.Unlock()
		f.h.faults = slices.DeleteFunc(f.h.faults, func(other *Fault) bool { return other == injected })
	}
}

// Break takes parts from a container: Health finds the differences, and Repair makes
// those again that are Repairable. Without parts, it takes the port of the bridge, which
// is. Fields of a part that are not set get values: the container's first network, the
// first plugin of the network, and a missing port of the bridge. The error is
// ErrNotAttached if the container is not attached to the network.
func (f *Fake) Break(id string, parts ...cni.Difference) error {
	if len(parts) == 0 {
		parts = []cni.Difference{{Repairable: true}}
	}
	f.h.mu.Lock()
	defer f.h.mu.Unlock()
	for _, d := range parts {
		a := f.h.containers[id].find(func(a *fakeAttachment) bool { return d.Network == "" || a.Network == d.Network })
		if a == nil {
			return fmt.Errorf("container %s is %w", id, cni.ErrNotAttached)
		}
		d.Network, d.IfName = a.Network, a.IfName
		d.Plugin = cmp.Or(d.Plugin, a.plugins()[0])
		d.Kind = cmp.Or(d.Kind, cni.KindBridgePort)
		d.Object = cmp.Or(d.Object, "veth of "+id)
		d.Wanted = cmp.Or(d.Wanted, "present")
		if d.Err == nil {
			d.Err = fmt.Errorf("%s %s is missing", d.Kind, d.Object)
		}
		a.broken = append(a.broken, d)
	}
	f.h.announce()
	return nil
}

// Interrupt leaves a container as the end of the program in the middle of its last Setup
// would: Attaching, so that Recover removes it. The error is ErrNotAttached if it is not
// on record.
func (f *Fake) Interrupt(id string) error {
	f.h.mu.Lock()
	defer f.h.mu.Unlock()
	c := f.h.containers[id]
	if c == nil {
		return fmt.Errorf("container %s is %w", id, cni.ErrNotAttached)
	}
	for _, a := range c.attachments {
		if a.call == c.calls {
			a.progress = fakePlanned
		}
	}
	c.changes++
	return nil
}

// Calls returns the calls so far that have returned, on this host.
func (f *Fake) Calls() []FakeCall {
	f.h.mu.Lock()
	defer f.h.mu.Unlock()
	return slices.Clone(f.h.calls)
}

// record is deferred by each method that is a call.
func (f *Fake) record(c FakeCall, err *error) {
	f.h.mu.Lock()
	defer f.h.mu.Unlock()
	c.Err = *err
	f.h.calls = append(f.h.calls, c)
}

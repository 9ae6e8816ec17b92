package cnitest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"

	"github.com/embedcni/cni"
)

// Fake is a Runtime without a kernel: it touches no network, no file but configurations,
// and starts no plugin, so it works on every system and without privileges. It behaves as
// a *cni.Runtime does, for Contract tests both: it validates arguments, attaches and
// rolls back, allocates addresses from the configured ranges, keeps records, and decides
// about containers in Recover, GC, Health and Repair.
//
// All types of plugins exist. Those of IPAM are host-local and static; any other
// allocates from 192.0.2.0/24. A network namespace is a path, which exists unless
// EndNetNS has ended it. The options of cni.New that are about plugins, directories of
// state, timeouts, retries or the host have no effect. Nothing is removed in the background,
// as with cni.WithoutReaping. There is no Pool, Release or Reconcile.
//
// A Fake is safe for concurrent use. Create one with NewFake.
type Fake struct {
	h    *fakeHost
	conf *cni.Runtime // the configuration
	lax  *cni.Runtime // the same, for calls that need no network

	mu    sync.Mutex
	owner string
}

// fakeHost is what survives the restart of a program.
type fakeHost struct {
	mu         sync.Mutex
	containers map[string]*fakeContainer
	locked     map[string]chan struct{} // by container; closed when it is unlocked
	gone       map[string]bool          // namespaces that have ended, by path
	exists     map[string]bool          // those that were made here
	faults     []*Fault
	holds      []cni.Hold
	calls      []FakeCall
	listeners  []chan struct{} // of guards
	ipam       fakeIPAM
	made       int   // interfaces
	port       int32 // that was chosen last
}

// fakeContainer is a container on record.
type fakeContainer struct {
	id, netns   string
	since       time.Time
	dead        bool // its namespace has ended
	made        bool // Setup has made its namespace
	calls       int  // of Setup
	attachments []*fakeAttachment
}

// FakeCall is a call of a Fake's method.
type FakeCall struct {
	Method      string // "Setup"
	ContainerID string // empty if the call is not about one
	NetNS       string
	Plan        *cni.Plan // of Setup and SetupSerially; nil if the arguments were invalid
	Err         error
}

// Fault makes a Fake's plugins fail or wait.
type Fault struct {
	Verb        string // ADD, DEL, CHECK or STATUS; empty: each
	ContainerID string // empty: each
	Network     string // empty: each
	Plugin      string // the type of the plugin; empty: the last of the network

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
	return newFake(&fakeHost{
		containers: map[string]*fakeContainer{}, locked: map[string]chan struct{}{}, gone: map[string]bool{}, exists: map[string]bool{}, ipam: newFakeIPAM(),
	}, opts)
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

// EndNetNS ends the network namespace at path, for example because the machine was
// started anew. Containers in it are gone.
func (f *Fake) EndNetNS(path string) {
	f.h.mu.Lock()
	defer f.h.mu.Unlock()
	f.h.gone[path] = true
	delete(f.h.exists, path)
	for _, c := range f.h.containers {
		c.dead = c.dead || c.netns == path
	}
}

// NewNetNS makes a network namespace at path. That is needed only after EndNetNS, or if a
// Setup with cni.WithNewNetNS is to find the path taken.
func (f *Fake) NewNetNS(path string) {
	f.h.mu.Lock()
	defer f.h.mu.Unlock()
	f.h.makeNetNS(path)
}

func (h *fakeHost) makeNetNS(path string) {
	delete(h.gone, path)
	h.exists[path] = true
}

// Break takes parts from a container: Health finds the differences, Repair makes those
// again that are Repairable. Fields that are not set get values: the container's first
// network, its first plugin, and a port of the bridge that is missing. Without a
// difference that is what breaks. The error is ErrNotAttached if the container is not
// attached to the network.
func (f *Fake) Break(id string, parts ...cni.Difference) error {
	if len(parts) == 0 {
		parts = []cni.Difference{{Repairable: true}}
	}
	f.h.mu.Lock()
	defer f.h.mu.Unlock()
	for _, d := range parts {
		a := f.h.find(id, func(a *fakeAttachment) bool { return d.Network == "" || a.Network == d.Network })
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

// lock waits until no other call for the container is in progress.
func (h *fakeHost) lock(ctx context.Context, id string) (unlock func(), err error) {
	for {
		h.mu.Lock()
		busy := h.locked[id]
		if busy == nil {
			done := make(chan struct{})
			h.locked[id] = done
			h.mu.Unlock()
			return func() {
				h.mu.Lock()
				defer h.mu.Unlock()
				delete(h.locked, id)
				close(done)
			}, nil
		}
		h.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// briefly is the time for which Recover and the like wait for another call.
const briefly = 250 * time.Millisecond

// lockBriefly returns ErrBusy if another call has the container locked.
func (h *fakeHost) lockBriefly(ctx context.Context, id string) (unlock func(), err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, briefly, cni.ErrBusy)
	defer cancel()
	return h.lock(ctx, id)
}

// find returns the first attachment of a container for which is returns true, or nil.
func (h *fakeHost) find(id string, is func(*fakeAttachment) bool) *fakeAttachment {
	c := h.containers[id]
	if c == nil {
		return nil
	}
	i := slices.IndexFunc(c.attachments, is)
	if i < 0 {
		return nil
	}
	return c.attachments[i]
}

// ids returns the containers on record, in order.
func (h *fakeHost) ids() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Sorted(maps.Keys(h.containers))
}

// validID is the check of every method that takes an ID alone.
func validID(id string) error {
	if err := utils.ValidateContainerID(id); err != nil {
		return fmt.Errorf("container ID %q: %w: %w", id, err, cni.ErrInvalidArgument)
	}
	return nil
}

// fault answers for a plugin: it returns the error of an injected fault. The host is
// not locked.
func (h *fakeHost) fault(ctx context.Context, verb, id string, network *fakeAttachment) error {
	plugins := network.plugins()
	f, ok := h.take(verb, id, network.Network)
	if !ok {
		return nil
	}
	typ := cmp.Or(f.Plugin, plugins[len(plugins)-1])
	if f.Wait != nil {
		if verb == "DEL" {
			ctx = context.WithoutCancel(ctx)
		}
		select {
		case <-f.Wait:
		case <-ctx.Done():
			return network.error(verb, id, typ, context.Cause(ctx))
		}
	}
	if f.Err == nil {
		return nil
	}
	return network.error(verb, id, typ, f.Err)
}

// take returns the fault for a call, and counts it.
func (h *fakeHost) take(verb, id, network string) (Fault, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, f := range h.faults {
		if f.Verb != "" && f.Verb != verb || f.ContainerID != "" && f.ContainerID != id || f.Network != "" && f.Network != network {
			continue
		}
		taken := *f
		if f.Times == 1 {
			h.faults = slices.Delete(h.faults, i, i+1)
		} else if f.Times > 1 {
			f.Times--
		}
		return taken, true
	}
	return Fault{}, false
}

// error returns the *cni.Error of a plugin.
func (a *fakeAttachment) error(verb, id, typ string, cause error) error {
	e := &cni.Error{
		Op: verb, Network: a.Network, Plugin: typ, ContainerID: id, IfName: a.IfName, Err: cause,
	}
	if typ == "" {
		return e
	}
	e.PluginKind = cni.PluginBuiltIn
	var coded *types.Error
	switch {
	case errors.As(cause, &coded):
		e.Code, e.Msg, e.Details = coded.Code, coded.Msg, coded.Details
	case errors.Is(cause, context.Canceled), errors.Is(cause, context.DeadlineExceeded):
	default:
		e.Code, e.Msg = types.ErrInternal, cause.Error()
	}
	return e
}

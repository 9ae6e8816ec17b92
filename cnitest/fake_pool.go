package cnitest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/conflist"
	"github.com/embedcni/cni/internal/warm"
)

// Pool has the methods of a *cni.Pool, and of a FakePool.
type Pool interface {
	Setup(ctx context.Context, id string, opts ...cni.NamespaceOpts) (path string, result *cni.Result, err error)
	Ready() int
	Close() error
}

var (
	_ Pool = (*cni.Pool)(nil)
	_ Pool = (*FakePool)(nil)
)

// FakePool is a Pool of a Fake. Like a *cni.Pool it attaches containers ahead of time, as
// far as the plugins of the networks need nothing from a caller, and uses each once. It
// makes them during NewPool, Setup and Ready, so that a test need not wait. A plugin that
// fails then, or waits for Fault.Wait, makes fewer containers ready.
type FakePool struct {
	f     *Fake
	size  int
	owner string

	using  sync.RWMutex // held for reading by each Setup
	closed bool

	mu    sync.Mutex
	stock []*warmed

	ended bool // by Interrupt; under the lock of the host
}

// warmed is a container that was made ahead of time.
type warmed struct {
	*fakeContainer
	plan *cni.Plan // of all networks
}

// NewPool is Runtime.NewPool of package cni. A program whose tests use a Fake takes the
// pool as an interface, such as Pool.
func (f *Fake) NewPool(o cni.PoolOptions) (_ *FakePool, err error) {
	defer f.record(FakeCall{Method: "NewPool"}, &err)
	if o.Size < 1 {
		return nil, fmt.Errorf("pool of %d containers: %w", o.Size, cni.ErrInvalidArgument)
	}
	p := &FakePool{f: f, size: o.Size, owner: f.me()}
	p.fill()
	return p, nil
}

// Setup is Pool.Setup of package cni.
func (p *FakePool) Setup(ctx context.Context, id string, opts ...cni.NamespaceOpts) (path string, result *cni.Result, err error) {
	call := FakeCall{Method: "Pool.Setup", ContainerID: id}
	defer func() { call.NetNS = path; p.f.record(call, &err) }()
	p.using.RLock()
	defer p.using.RUnlock()
	if p.closed {
		return "", nil, fmt.Errorf("set up container %q: %w", id, cni.ErrPoolClosed)
	}
	plan, err := p.f.conf.Plan(id, "", opts...)
	if err != nil {
		return "", nil, err
	}
	call.Plan = plan
	s, err := p.begin(ctx, plan)
	if err != nil {
		return "", nil, fmt.Errorf("set up container %q: %w", id, err)
	}
	result, err = s.finish(ctx, false)
	p.fill()
	if err != nil {
		return "", nil, err
	}
	return s.plan.NetNS, result, nil
}

// begin begins a Setup with a container that is ready, or without one.
func (p *FakePool) begin(ctx context.Context, plan *cni.Plan) (*fakeSetup, error) {
	for {
		w := p.take()
		if w == nil {
			break
		}
		now, err := p.f.conf.Plan(w.id, w.netns)
		if err != nil || !reflect.DeepEqual(now, w.plan) || !p.lives(w) {
			_ = p.remove(w) // with an error it stays on record, as failed, for Recover and GC
			continue
		}
		if w.fits(plan) {
			s := &fakeSetup{f: p.f, plan: plan, pooled: true, from: w.fakeContainer}
			if s.begin(ctx) == nil {
				return s, nil
			}
		}
		p.mu.Lock()
		p.stock = append([]*warmed{w}, p.stock...)
		p.mu.Unlock()
		break
	}
	s := &fakeSetup{f: p.f, plan: plan, pooled: true}
	return s, s.begin(ctx)
}

// take returns a container that is ready, or nil.
func (p *FakePool) take() *warmed {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.stock) == 0 {
		return nil
	}
	w := p.stock[0]
	p.stock = p.stock[1:]
	return w
}

// lives reports whether a container is as it was made.
func (p *FakePool) lives(w *warmed) bool {
	p.f.h.mu.Lock()
	defer p.f.h.mu.Unlock()
	return p.f.h.containers[w.id] == w.fakeContainer && !w.dead &&
		w.find(func(a *fakeAttachment) bool { return len(a.broken) > 0 || a.progress != fakeAdded }) == nil
}

// fits reports whether a Setup can use the container.
func (w *warmed) fits(plan *cni.Plan) bool {
	used := 0
	for _, a := range plan.Attachments {
		if w.on(a.Network, a.IfName) == nil {
			if ahead(a) > 0 {
				return false
			}
			continue
		}
		used++
		var args [][2]string
		for name, value := range a.Args {
			args = append(args, [2]string{name, value})
		}
		configArgs := map[string]any{}
		for name, value := range a.ConfigArgs {
			configArgs[name] = value
		}
		if !warm.CanWait(args, configArgs) || warm.Asked(plugins(a)[:ahead(a)], a.Capabilities) {
			return false
		}
	}
	return used == len(w.attachments)
}

// ahead returns how many plugins of a network need nothing from a caller.
func ahead(a cni.PlannedAttachment) int {
	return warm.Ahead(plugins(a), func(string) bool { return false })
}

// plugins returns those of a network.
func plugins(a cni.PlannedAttachment) []*libcni.PluginConfig {
	list, err := conflist.Parse(a.Config)
	if err != nil {
		return nil
	}
	return list.Plugins
}

// fill makes containers until as many are ready as the pool has room for, or one cannot
// be made.
func (p *FakePool) fill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.stock) < p.size {
		w, err := p.make()
		if err != nil {
			return // as a Pool does, it tries again later
		}
		p.stock = append(p.stock, w)
	}
}

// make makes a container ahead of time.
func (p *FakePool) make() (*warmed, error) {
	h := p.f.h
	h.mu.Lock()
	id := fmt.Sprintf("warm-%d", h.made+1)
	path := h.newPath("warm")
	h.mu.Unlock()
	plan, err := p.f.conf.Plan(id, path)
	if err != nil {
		return nil, err
	}
	some := *plan
	some.Attachments = slices.DeleteFunc(slices.Clone(plan.Attachments), func(a cni.PlannedAttachment) bool { return ahead(a) == 0 })
	s := &fakeSetup{f: p.f, plan: &some, ours: true, pool: p}
	if err := s.enter(); err != nil {
		return nil, err
	}
	h.mu.Lock()
	w := &warmed{h.containers[id], plan}
	h.mu.Unlock()
	if err := p.f.add(context.Background(), id, s.mine, false); err != nil {
		return nil, errors.Join(err, p.remove(w))
	}
	return w, nil
}

// remove removes a container that nobody uses. With an error it stays on record.
func (p *FakePool) remove(w *warmed) error {
	unlock, err := p.f.h.lock(context.Background(), w.id)
	if err != nil {
		return err
	}
	defer unlock()
	all, _ := p.f.h.recorded(w.id, nil)
	if err := p.f.tearDown(context.Background(), w.id, all); err != nil {
		return err
	}
	p.f.h.mu.Lock()
	defer p.f.h.mu.Unlock()
	p.f.h.forget(w.id, all)
	return nil
}

// Ready is Pool.Ready of package cni.
func (p *FakePool) Ready() int {
	p.using.RLock()
	defer p.using.RUnlock()
	if !p.closed {
		p.fill()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.stock)
}

// Close is Pool.Close of package cni.
func (p *FakePool) Close() (err error) {
	defer p.f.record(FakeCall{Method: "Pool.Close"}, &err)
	p.using.Lock()
	defer p.using.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	var errs []error
	for w := p.take(); w != nil; w = p.take() {
		errs = append(errs, p.remove(w))
	}
	return join(errs)
}

// Interrupt leaves the pool as the end of the program would: containers that are ready
// stay on record, and Recover and GC remove them. The pool is closed.
func (p *FakePool) Interrupt() {
	p.using.Lock()
	defer p.using.Unlock()
	p.closed = true
	p.mu.Lock()
	p.stock = nil
	p.mu.Unlock()
	p.f.h.mu.Lock()
	defer p.f.h.mu.Unlock()
	p.ended = true
}

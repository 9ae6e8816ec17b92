package cni

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/container"
	"github.com/embedcni/cni/internal/lock"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/internal/nsfind"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/warm"
	"github.com/embedcni/cni/netns"
)

// PoolOptions configures a Pool.
type PoolOptions struct {
	// Size is the largest number of containers made ahead of time. It must be at
	// least 1.
	Size int
}

// Pool makes network namespaces, and attaches them as far as the loaded networks
// allow, before containers need them, so that a Setup takes well below a
// millisecond.
//
// The plugins of a chain run ahead of time up to the first that may need something from
// each caller (portmap its ports, bandwidth its rates); the rest runs in Setup. A Setup
// that asks for an address or a hardware address uses no container made ahead of time. Plugins are given the ID
// under which the attachment was made, "warm-…", instead of the container's:
// their configuration, files and rules contain it. Everything else in this
// library uses the container's ID.
//
// Each container is used once. Remove removes it with its namespace. Recover and
// GC remove the containers that a killed process had made ahead of time.
//
// A Pool is safe for concurrent use.
type Pool struct {
	runtime *Runtime
	locks   *lock.Space // holds the byte that dir is named after, whatever is loaded
	dir     string
	stock   *warm.Stock[*prepared]

	mu       sync.RWMutex // held for reading by each Setup
	closed   bool
	settling sync.WaitGroup // the work that Setups have left for later

	removing sync.Mutex // held while removing a container that nobody wants
}

// ErrPoolClosed is the error of a Setup after Close. It wraps os.ErrClosed.
var ErrPoolClosed = fmt.Errorf("pool: %w", os.ErrClosed)

// NewPool begins to make containers ahead of time, for the networks that are
// loaded now or later. It makes them in the namespace that WithHostNetNS names,
// or else in the process's. It must be possible to mount namespaces in the
// record directory. Close ends the Pool.
func (r *Runtime) NewPool(o PoolOptions) (*Pool, error) {
	if o.Size < 1 {
		return nil, fmt.Errorf("pool of %d containers: %w", o.Size, ErrInvalidArgument)
	}
	s := r.current.Load()
	dir, err := s.Pools.Dir()
	if err != nil {
		return nil, fmt.Errorf("pool: %w", err)
	}
	p := &Pool{
		runtime: r,
		locks:   s.Locks.Space,
		dir:     dir,
	}
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return nil, fmt.Errorf("pool: %w", err)
	}
	if private, err := nsfind.MountsArePrivate(p.dir, nsfind.FirstMountNS); private || err != nil {
		s.logger.Warn("namespaces that the pool makes will not be seen in the mount namespace of the machine, "+
			"nor by this program when it is started again: share the mounts of the record directory", "path", p.dir, "error", err)
	}
	p.stock = warm.Fill(o.Size, p.make)
	return p, nil
}

// Setup attaches a container that has no namespace yet, and returns the path of
// its new one; with an error there is none. Options are those of Runtime.Setup.
// If no container is ready that fits the options, Setup makes one now.
//
// Setup takes a ready container only if its interfaces and rules still exist. In
// the background, the Pool removes and replaces a container that is dead, or
// that was made for networks that are no longer loaded.
func (p *Pool) Setup(ctx context.Context, id string, opts ...NamespaceOpts) (path string, result *Result, err error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed {
		return "", nil, fmt.Errorf("set up container %q: %w", id, ErrPoolClosed)
	}
	p.runtime.watches.asked()
	s := p.runtime.current.Load()
	ns, err := newNamespace(id, "", opts...)
	if err := p.runtime.usable(s, ns); err != nil {
		return "", nil, err
	}
	if err != nil {
		return "", nil, fmt.Errorf("set up container %q: %w", id, err)
	}
	if ns.makesIn != nil {
		return "", nil, fmt.Errorf("set up container %q: a pool's network namespace in a given user namespace: %w", id, ErrInvalidArgument)
	}
	ns.ours, ns.makes = true, false
	for refused := 0; ; {
		w, ok := p.stock.Take()
		if !ok {
			return p.setupCold(ctx, s, ns)
		}
		if !w.snapshot.makesTheSame(s) {
			p.discard(w, errStale)
			continue
		}
		result, err := w.take(ctx, s, ns)
		switch {
		case errors.Is(err, warm.ErrDead):
			p.discard(w, err)
			continue
		case errors.Is(err, warm.ErrUnfit):
			p.stock.Return(w)
			return p.setupCold(ctx, s, ns)
		}
		p.stock.Drop()
		w.DiscardFiles()
		if err != nil {
			if refused++; refused < mostHolders && s.endHolders(ctx, err) {
				continue
			}
			return "", nil, err
		}
		return w.Path, result, nil
	}
}

// errStale: made for a configuration that is no longer loaded.
var errStale = errors.New("made ahead of time, for another configuration")

// setupCold makes a namespace and attaches it.
func (p *Pool) setupCold(ctx context.Context, s *snapshot, ns *Namespace) (string, *Result, error) {
	made, path, err := p.newNetNS("cold-")
	if err != nil {
		return "", nil, fmt.Errorf("set up container %q: %w", ns.id, err)
	}
	ns.path = path
	result, err := s.setup(ctx, ns, false)
	if cerr := made.Close(); cerr != nil {
		s.logger.Error("close network namespace", "container", ns.id, "error", cerr)
	}
	if err != nil {
		return "", nil, join(err, s.RemoveUnrecorded(ns.id, path))
	}
	return path, result, nil
}

// newNetNS makes a namespace at a path of its own.
func (p *Pool) newNetNS(prefix string) (*netns.Handle, string, error) {
	var random [12]byte
	_, _ = rand.Read(random[:]) // never fails, see its documentation
	path := filepath.Join(p.dir, prefix+hex.EncodeToString(random[:]))
	ns, err := netns.Create(path)
	return ns, path, err
}

// discard makes room for another container than w, which nobody wants, and
// removes w in the background. If that fails, w stays recorded for Recover or
// GC.
func (p *Pool) discard(w *prepared, why error) {
	p.stock.Drop()
	w.DiscardFiles()
	logger := w.snapshot.logger
	logger.Info("removing a container that was made ahead of time", "container", w.ID, "reason", why)
	p.settling.Add(1)
	go func() {
		defer p.settling.Done()
		p.removing.Lock() // one at a time, so that Setups go first
		defer p.removing.Unlock()
		if err := w.snapshot.remove(context.Background(), &Namespace{id: w.ID}); err != nil {
			logger.Warn("remove a container that was made ahead of time", "container", w.ID, "error", err)
		}
	}()
}

// make makes a container ahead of time.
func (p *Pool) make(ctx context.Context) (*prepared, error) {
	s := p.runtime.current.Load()
	w, err := p.prepare(ctx, s)
	if err != nil && ctx.Err() == nil {
		s.logger.Warn("make a container ahead of time", "error", err)
	}
	return w, err
}

// Ready returns the number of containers that are ready now, at most Size.
func (p *Pool) Ready() int { return p.stock.Len() }

// Close stops making containers, waits for calls of Setup and their background
// work, and removes unused containers. The error names the containers that
// cannot be removed, which stay recorded for Recover or GC. Only the first call
// has an effect.
func (p *Pool) Close() error {
	p.stock.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	p.settling.Wait()
	var errs []error
	for {
		w, ok := p.stock.Take()
		if !ok {
			return join(errs...)
		}
		w.DiscardFiles()
		errs = append(errs, w.snapshot.remove(context.Background(), &Namespace{id: w.ID}))
	}
}

// prepared is a container that was made ahead of time.
type prepared struct {
	warm.Container
	snapshot *snapshot
	settling *sync.WaitGroup
}

// prepare makes a namespace and attaches it as far as possible without a caller.
func (p *Pool) prepare(ctx context.Context, s *snapshot) (*prepared, error) {
	handle, path, err := p.newNetNS("warm-")
	if err != nil {
		return nil, err
	}
	w := &prepared{warm.Container{ID: record.ID(filepath.Base(path)), Path: path}, s, &p.settling}
	if err = w.attach(ctx); err != nil {
		err = join(err, s.RemoveUnrecorded(w.ID, path))
	}
	return w, join(err, handle.Close())
}

func (w *prepared) attach(ctx context.Context) error {
	op, err := w.snapshot.begin(&Namespace{id: w.ID, path: w.Path, scope: newScope(), ours: true}, "ADD")
	if err != nil {
		return err
	}
	defer op.end()
	op.Warm, w.Host, w.NS = true, op.Host.String(), op.NetNS.ID()
	for _, a := range op.attachments {
		a.part.To = a.network.ahead()
	}
	op.attachments = slices.DeleteFunc(op.attachments, func(a *attachment) bool { return a.part.To == 0 })
	if err := op.lock(ctx, container.Access{}); err != nil {
		return err
	}
	if err := op.write(ctx); err != nil {
		return err
	}
	if err := w.make(ctx, op); err != nil {
		w.DiscardFiles()
		if rerr := op.rollBack(ctx); rerr != nil {
			return &rollbackError{err, rerr}
		}
		return err
	}
	return nil
}

// make attaches the container, and records the resulting state.
func (w *prepared) make(ctx context.Context, op *operation) error {
	if _, err := op.attach(ctx, false); err != nil {
		return err
	}
	for _, a := range op.attachments {
		t, done := a.target()
		seen, err := warm.See(ctx, op.place(), t)
		done()
		if err != nil {
			return a.error("ADD", err)
		}
		plugins := a.network.config.Plugins
		rest := chain.Part{From: a.part.To, To: len(plugins), Result: a.partial}
		ran := warm.Ran(plugins[:a.part.To], a.plugins.Recorded())
		made := warm.Made{
			Network: a.network.config.Name, IfName: a.IfName, Rest: rest, Facts: a.facts.All(), Plugins: ran, Seen: seen,
		}
		if a.part.To < len(plugins) {
			made.Cache = a.chain().PrepareCache(&a.Attachment)
		}
		w.Made = append(w.Made, made)
	}
	w.Record = op.Records.Prepare()
	return nil
}

// place returns the place of the operation's attachments.
func (op *operation) place() warm.Place {
	return warm.Place{
		Host: op.Host, Container: op.NetNS, Firewalld: op.bus,
		Filters: netfilter.Options{Sockets: op.sockets, Held: op.LockFile()},
	}
}

// fits reports whether w fits the operation.
func (w *prepared) fits(op *operation) bool {
	if op.Host.String() != w.Host {
		return false
	}
	used := 0
	for _, a := range op.attachments {
		if len(a.dirs) > 0 {
			return false
		}
		if m := w.Find(a.network.config.Name, a.IfName); m != nil && !a.ownConfig {
			a.part, a.partial = m.Rest, m.Rest.Result
			a.facts.Reset(m.Facts)
			a.plugins.Reset(m.Plugins, nil)
			a.cacheFile = m.Cache
			used++
		} else if a.network.ahead() > 0 {
			return false
		}
		ran := a.network.config.Plugins[:a.part.From]
		if len(ran) > 0 && (!warm.CanWait(a.Args, a.ConfigArgs) || warm.Asked(ran, a.CapabilityArgs)) {
			return false
		}
	}
	return used == len(w.Made)
}

// take makes w the container of ns, under an equal configuration. After
// warm.ErrUnfit or warm.ErrDead nothing has happened.
func (w *prepared) take(ctx context.Context, s *snapshot, ns *Namespace) (*Result, error) {
	own := *ns
	own.path = w.Path
	op, err := s.begin(&own, "ADD")
	if err != nil {
		if !warm.Exists(w.Path, w.NS) {
			return nil, fmt.Errorf("%w: %w", warm.ErrDead, err)
		}
		return nil, fmt.Errorf("%w: %w", warm.ErrUnfit, err) // making one returns the reason
	}
	defer op.end()
	s.reap(op.Host, true)
	if s.hostNetNS != "" && op.Host.String() != w.Host {
		return nil, fmt.Errorf("%s has become another namespace: %w", s.hostNetNS, warm.ErrDead)
	}
	if !w.fits(op) {
		return nil, warm.ErrUnfit
	}
	if err := w.Lives(ctx, op.place()); err != nil {
		return nil, err
	}
	if err := op.lock(ctx, container.Access{}); err != nil {
		return nil, fmt.Errorf("%w: %w", warm.ErrUnfit, err)
	}
	if err := op.clearDead(ctx); err != nil {
		return nil, fmt.Errorf("%w: %w", warm.ErrUnfit, err)
	}
	if err := op.takeOver(ctx, w); err != nil {
		return nil, fmt.Errorf("%w: %w", warm.ErrUnfit, err)
	}
	defer w.forget(op.Pending()) // not earlier: the sync would hold up the rest
	return op.finishSetup(ctx, false)
}

// forget deletes the record of w in the background, once the record that replaces it
// survives a power cut.
func (w *prepared) forget(taken *record.Pending) {
	w.settling.Add(1)
	go func() {
		defer w.settling.Done()
		err := taken.Wait()
		if err == nil {
			err = w.snapshot.DeleteRecord(&record.Record{ContainerID: w.ID})
		}
		if err != nil {
			w.snapshot.logger.Warn("delete the record of a container that was made ahead of time and is used now", "container", w.ID, "error", err)
		}
	}()
}

// takeOver writes the record of a container that plugins know under the ID of w.
// From then on w is that container; its other record is deleted later.
func (op *operation) takeOver(ctx context.Context, w *prepared) error {
	op.MadeAs = record.PluginID(w.ID)
	op.UseForRecord(w.Record)
	for _, a := range op.attachments {
		a.ContainerID = string(op.MadeAs)
		a.attempted = a.part.From > 0
	}
	if err := op.write(ctx); err != nil {
		err = join(err, op.Records.Delete(op.ID))
		_ = op.Pending().Wait() // nobody relies on it
		return err
	}
	return nil
}

// makesTheSame reports whether containers that were made ahead of time under s
// can be used under now: the networks are equal, and so is everything else that
// decides which plugins run, with which input, where they run, and where they
// are recorded.
func (s *snapshot) makesTheSame(now *snapshot) bool {
	return s == now ||
		s.Records == now.Records && s.own == now.own && s.owner == now.owner && s.hostNetNS == now.hostNetNS &&
			s.runner.Choice.Same(now.runner.Choice) && slices.EqualFunc(s.networks, now.networks, (*Network).same)
}

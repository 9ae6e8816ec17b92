package cni

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/embedcni/cni/internal/lock"
	"github.com/embedcni/cni/internal/nsfind"
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
// The plugins of a chain run ahead of time up to the first that declares a
// capability (portmap with its ports, bandwidth with its rates) or that may need
// something from the caller; the rest runs in Setup. Plugins are given the ID
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
	ready   chan *prepared
	room    chan struct{} // holds one for each that is ready or being made

	stop   context.CancelFunc // ends make
	making sync.WaitGroup

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
		ready:   make(chan *prepared, o.Size),
		room:    make(chan struct{}, o.Size),
	}
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return nil, fmt.Errorf("pool: %w", err)
	}
	if private, err := nsfind.MountsArePrivate(p.dir, nsfind.FirstMountNS); private || err != nil {
		s.logger.Warn("namespaces that the pool makes will not be seen in the mount namespace of the machine, "+
			"nor by this program when it is started again: share the mounts of the record directory", "path", p.dir, "error", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	p.making.Add(1)
	go p.make(ctx)
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
	s := p.runtime.current.Load()
	if err := p.runtime.ready(s); err != nil {
		return "", nil, err
	}
	ns, err := newNamespace(id, "", opts...)
	if err != nil {
		return "", nil, fmt.Errorf("set up container %q: %w", id, err)
	}
	ns.ours = true
	for refused := 0; ; {
		var w *prepared
		select {
		case w = <-p.ready:
		default:
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
			p.ready <- w // there is room, because it was in there
			return p.setupCold(ctx, s, ns)
		}
		<-p.room
		if err != nil {
			if refused++; refused < mostHolders && s.endHolders(ctx, err) {
				continue
			}
			return "", nil, err
		}
		return w.path, result, nil
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
	path := filepath.Join(p.dir, randomID(prefix))
	ns, err := netns.Create(path)
	return ns, path, err
}

// discard makes room for another container than w, which nobody wants, and
// removes w in the background. If that fails, w stays recorded for Recover or
// GC.
func (p *Pool) discard(w *prepared, why error) {
	<-p.room
	logger := w.snapshot.logger
	logger.Info("removing a container that was made ahead of time", "container", w.id, "reason", why)
	p.settling.Add(1)
	go func() {
		defer p.settling.Done()
		p.removing.Lock() // one at a time, so that Setups go first
		defer p.removing.Unlock()
		if err := w.snapshot.remove(context.Background(), &Namespace{id: w.id}); err != nil {
			logger.Warn("remove a container that was made ahead of time", "container", w.id, "error", err)
		}
	}()
}

// make makes one container after the other while there is room.
func (p *Pool) make(ctx context.Context) {
	defer p.making.Done()
	failures := 0
	for {
		select {
		case p.room <- struct{}{}:
		case <-ctx.Done():
			return
		}
		s := p.runtime.current.Load()
		w, err := p.prepare(ctx, s)
		if err == nil {
			failures = 0
			p.ready <- w
			continue
		}
		<-p.room
		if ctx.Err() != nil {
			return
		}
		failures++
		s.logger.Warn("make a container ahead of time", "error", err)
		if waitFor(ctx, min(100*time.Millisecond<<min(failures-1, 10), 10*time.Second)) != nil {
			return
		}
	}
}

// Ready returns the number of containers that are ready now, at most Size.
func (p *Pool) Ready() int { return len(p.ready) }

// Close stops making containers, waits for calls of Setup and their background
// work, and removes unused containers. The error names the containers that
// cannot be removed, which stay recorded for Recover or GC. Only the first call
// has an effect.
func (p *Pool) Close() error {
	p.stop()
	p.making.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	p.settling.Wait()
	var errs []error
	for {
		select {
		case w := <-p.ready:
			errs = append(errs, w.snapshot.remove(context.Background(), &Namespace{id: w.id}))
		default:
			return join(errs...)
		}
	}
}

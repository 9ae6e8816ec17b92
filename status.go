package cni

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/version"

	"github.com/embedcni/cni/internal/hostns"
)

// Status is StatusContext without a context. Timeouts.Status bounds it.
func (r *Runtime) Status() error { return r.StatusContext(context.Background()) }

// StatusContext returns nil if containers can be attached. It returns
// ErrCNINotInitialized if fewer networks are loaded than WithMinNetworkCount asks
// for, with the error of the last Load if that failed; ErrInvalidConfig if one of them
// has no name; or else the error that a plugin of a network of version 1.1.0 or later
// returns for STATUS. It waits for no other call, and concurrent calls share one
// answer.
func (r *Runtime) StatusContext(ctx context.Context) error {
	s := r.current.Load()
	if err := join(r.ready(s), s.unnamed()); err != nil {
		return err
	}
	return s.askStatus(ctx)
}

// statusCache lets callers share one run of STATUS, and reuses a recent success.
// It belongs to a snapshot, so a Load discards it. The lock is held for
// bookkeeping only.
type statusCache struct {
	mu      sync.Mutex
	host    string // the namespace of the other fields
	good    time.Time
	running *statusRun
}

type statusRun struct {
	done chan struct{} // closed when err is set
	err  error
}

func (s *snapshot) askStatus(ctx context.Context) error {
	if !slices.ContainsFunc(s.networks, (*Network).hasStatus) {
		return nil
	}
	host, err := s.Hosts.Open(s.hostNetNS)
	if err != nil {
		return err
	}
	run := s.status.join(ctx, s, host)
	if run == nil {
		return nil
	}
	select {
	case <-run.done:
		return run.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// hasStatus reports whether the network is of a version that has STATUS.
func (n *Network) hasStatus() bool {
	ok, err := version.GreaterThanOrEqualTo(n.config.CNIVersion, "1.1.0")
	return err == nil && ok
}

// join returns the current run, starts one, or returns nil if the last one
// succeeded recently. It takes host over.
func (c *statusCache) join(ctx context.Context, s *snapshot, host *hostns.NetNS) *statusRun {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.host != host.String() {
		c.host, c.good, c.running = host.String(), time.Time{}, nil
	}
	fresh := !c.good.IsZero() && time.Since(c.good) < s.statusTTL
	if fresh || c.running != nil {
		if err := host.Close(); err != nil {
			s.logger.Error("close network namespace", "error", err)
		}
		return c.running
	}
	run := &statusRun{done: make(chan struct{})}
	c.running = run
	go func() {
		run.err = join(s.runStatus(context.WithoutCancel(ctx), host), host.Close())
		c.finish(run)
		close(run.done)
	}()
	return run
}

func (c *statusCache) finish(run *statusRun) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running != run {
		return // another namespace has taken the cache over
	}
	c.running = nil
	if run.err == nil {
		c.good = time.Now()
	}
}

// runStatus asks the networks in order and stops at the first that cannot serve.
// All of them share the time of one STATUS, because a caller such as a health
// probe cannot use a later answer.
func (s *snapshot) runStatus(ctx context.Context, host *hostns.NetNS) error {
	ctx, cancel := s.runner.Bound(ctx, "STATUS")
	defer cancel()
	op := &operation{snapshot: s, Container: s.New("", host)}
	for _, n := range s.networks {
		a := op.about(n)
		if err := a.chain().Status(ctx); err != nil {
			return a.errors("STATUS", err)
		}
	}
	return nil
}

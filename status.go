package cni

import (
	"context"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/version"

	"github.com/embedcni/cni/internal/hostns"
)

// statusCache lets callers share one run of STATUS, and spares the plugins a
// run when they were fine a moment ago. It belongs to a snapshot, so that a
// Load forgets it. The lock is held for bookkeeping only.
type statusCache struct {
	mu      sync.Mutex
	host    string // which namespace the rest is about
	good    time.Time
	running *statusRun
}

type statusRun struct {
	done chan struct{} // closed when err is set
	err  error
}

func (s *snapshot) askStatus(ctx context.Context) error {
	if !s.hasStatus() {
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

// hasStatus tells whether any network is of a version that has STATUS.
func (s *snapshot) hasStatus() bool {
	for _, n := range s.networks {
		if ok, err := version.GreaterThanOrEqualTo(n.config.CNIVersion, "1.1.0"); err == nil && ok {
			return true
		}
	}
	return false
}

// join returns the run under way, starts one, or returns nil if the last one
// was good and is fresh. It takes host over.
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

// runStatus asks the networks in order and stops at the first that cannot
// serve, all within the time that one STATUS has: a caller such as a health
// probe has no use for a later answer.
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

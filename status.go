package cni

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/internal/plainfile"
	"github.com/embedcni/cni/internal/runner"
	"github.com/embedcni/cni/internal/thread"
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
		run.err = join(s.statusOf(context.WithoutCancel(ctx), host, s.networks), host.Close())
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

// statusOf asks networks in order and stops at the first that cannot serve.
// All of them share the time of one STATUS, because a caller such as a health
// probe cannot use a later answer.
func (s *snapshot) statusOf(ctx context.Context, host *hostns.NetNS, networks []*Network) error {
	ctx, cancel := s.runner.Bound(ctx, "STATUS")
	defer cancel()
	op := &operation{snapshot: s, Container: s.New("", host)}
	for _, n := range networks {
		a := op.about(n)
		if err := a.chain().Status(ctx); err != nil {
			return a.errors("STATUS", err)
		}
	}
	return nil
}

// Ready returns nil if a Setup of all loaded networks could succeed now, or an error with
// every reason why not, a line for each, which errors.Is and errors.As find. It attaches
// nothing, and writes nothing itself. The reasons are:
//
//   - ErrCNINotInitialized, with the error of the last Load if that failed, and
//     ErrInvalidConfig for a network without a name;
//   - an *Error for each plugin that cannot be run, IPAM plugins included
//     (ErrPluginNotFound, ErrInsecureFile), and for each that refuses STATUS, as for a
//     subnet without free addresses. Executables are asked on networks of version
//     1.1.0 and later, and built-in plugins on all, also about executables that are
//     released reference plugins, whose own STATUS says less. What another executable
//     does not say is not known;
//   - directories in which nothing can be written, or which have no space left;
//   - why the last Reload could not load the files (ErrLoad), so that earlier networks are
//     still in use;
//   - capabilities that this process lacks, and features of the kernel and programs
//     that the plugins of the loaded networks need.
//
// Unlike Status, which answers as go-cni's, it does not stop at the first reason, and
// remembers no answer. Timeouts.Status bounds it.
func (r *Runtime) Ready(ctx context.Context) error {
	s := r.current.Load()
	tooFew := r.ready(s)
	reasons := []error{tooFew, s.unnamed(), writable(s.stateDir, s.recordDir, s.own), lackOfPrivileges()}
	if why := r.outdated.Load(); why != nil && tooFew == nil {
		reasons = append(reasons, *why)
	}
	host, err := s.Hosts.Open(s.hostNetNS)
	if err != nil {
		reasons = append(reasons, err)
	} else {
		ctx, cancel := s.runner.Bound(ctx, "STATUS")
		defer cancel()
		reasons = append(reasons, s.lackOfKernel(ctx, host))
		for _, n := range s.networks {
			reasons = append(reasons, n.ready(ctx, host)...)
		}
		reasons = append(reasons, host.Close())
	}
	if err := errors.Join(reasons...); err != nil {
		return fmt.Errorf("not ready\n%w", err)
	}
	return nil
}

// writable returns why nothing can be written to one of the directories.
func writable(dirs ...string) error {
	var errs []error
	for _, dir := range dirs {
		if dir == "" {
			continue // a default, below one of the others
		}
		if err := plainfile.Writable(dir); err != nil {
			errs = append(errs, err)
		}
	}
	return join(errs...)
}

func lackOfPrivileges() error {
	lacks, err := thread.MissingCapabilities()
	if err != nil || len(lacks) == 0 {
		return err
	}
	return fmt.Errorf("plugins need %s, which this process lacks", strings.Join(lacks, " and "))
}

// lackOfKernel returns why the kernel or the programs of the host do not suffice for
// the plugins of the loaded networks.
func (s *snapshot) lackOfKernel(ctx context.Context, host *hostns.NetNS) error {
	var errs []error
	if err := host.Reachable(); err != nil {
		errs = append(errs, fmt.Errorf("rtnetlink: %w", err))
	}
	if s.makesRules() {
		errs = append(errs, netfilter.Open(host.Handle, netfilter.Options{Sockets: s.sockets}).Usable(ctx))
	}
	return join(errs...)
}

// makesRules reports whether a plugin of the loaded networks makes rules in a packet
// filter.
func (s *snapshot) makesRules() bool {
	return slices.ContainsFunc(s.networks, func(n *Network) bool {
		return slices.ContainsFunc(n.config.Plugins, func(p *libcni.PluginConfig) bool { return known.Of(p.Network.Type).Rules != known.NoRules })
	})
}

// ready returns the reasons why the network's plugins cannot attach a container.
func (n *Network) ready(ctx context.Context, host *hostns.NetNS) (reasons []error) {
	op := &operation{snapshot: n.snapshot, Container: n.snapshot.New("", host)}
	a := op.about(n)
	missing := func(typ string, err error) {
		e := a.error("STATUS", withSentinel(err))
		e.Plugin = typ
		reasons = append(reasons, e)
	}
	type asking struct {
		plugin  *libcni.PluginConfig
		builtIn bool
	}
	var asked []asking
	for _, p := range n.config.Plugins {
		found, err := n.snapshot.runnerOf(n).Find(p.Network.Type)
		if err != nil {
			missing(p.Network.Type, err)
			continue
		}
		if ipam := p.Network.IPAM.Type; ipam != "" {
			if err := n.snapshot.runnerOf(n).FindDelegate(found, ipam); err != nil {
				missing(ipam, err)
				continue
			}
		}
		if n.hasStatus() || found.Kind == runner.BuiltIn {
			asked = append(asked, asking{p, false})
		}
		if found.Kind == runner.Executable && n.snapshot.choice.BuiltIn(p.Network.Type) != nil && a.runner().AreReference(ctx, p.Network.Type, p.Network.IPAM.Type) {
			asked = append(asked, asking{p, true})
		}
	}
	for _, q := range asked { // one after the other, to hear all of them
		if err := op.askStatus(ctx, n, q.plugin, q.builtIn); err != nil {
			reasons = append(reasons, err)
		}
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			break // the others would say the same
		}
	}
	return reasons
}

// askStatus asks one plugin of a network for STATUS, or the built-in plugins of its types
// in place of executables.
func (op *operation) askStatus(ctx context.Context, n *Network, p *libcni.PluginConfig, builtIn bool) error {
	list := *n.config
	list.Plugins = []*libcni.PluginConfig{p}
	if !n.hasStatus() {
		list.CNIVersion = "1.1.0" // built-in plugins know it
	}
	a := op.about(&Network{config: &list, ifName: n.ifName, isLo: n.isLo, snapshot: n.snapshot})
	a.standsIn = builtIn
	return a.errors("STATUS", a.chain().Status(ctx))
}

package engine

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
	"github.com/embedcni/cni/internal/perm"
	"github.com/embedcni/cni/internal/runner"
)

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

func (eng *Engine) AskStatus(ctx context.Context) error {
	if !slices.ContainsFunc(eng.networks, (*Network).hasStatus) {
		return nil
	}
	host, err := eng.Store.Hosts.Open(eng.opts.HostNetNS)
	if err != nil {
		return err
	}
	run := eng.status.join(ctx, eng, host)
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
	ok, err := version.GreaterThanOrEqualTo(n.Config.CNIVersion, "1.1.0")
	return err == nil && ok
}

// join returns the current run, starts one, or returns nil if the last one
// succeeded recently. It takes host over.
func (c *statusCache) join(ctx context.Context, s *Engine, host *hostns.NetNS) *statusRun {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.host != host.String() {
		c.host, c.good, c.running = host.String(), time.Time{}, nil
	}
	fresh := !c.good.IsZero() && time.Since(c.good) < s.opts.StatusTTL
	if fresh || c.running != nil {
		if err := host.Close(); err != nil {
			s.opts.Logger.Error("close network namespace", "error", err)
		}
		return c.running
	}
	run := &statusRun{done: make(chan struct{})}
	c.running = run
	go func() {
		run.err = Join(s.statusOf(context.WithoutCancel(ctx), host, s.networks), host.Close())
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

// askStatusOf asks networks that need not be loaded.
func (eng *Engine) AskStatusOf(ctx context.Context, networks []*Network) error {
	host, err := eng.Store.Hosts.Open(eng.opts.HostNetNS)
	if err != nil {
		return err
	}
	return Join(eng.statusOf(ctx, host, networks), host.Close())
}

// statusOf asks networks in order and stops at the first that cannot serve.
// All of them share the time of one STATUS, because a caller such as a health
// probe cannot use a later answer.
func (eng *Engine) statusOf(ctx context.Context, host *hostns.NetNS, networks []*Network) error {
	ctx, cancel := eng.runner.Bound(ctx, "STATUS")
	defer cancel()
	op := &operation{eng: eng, c: eng.Store.New("", host)}
	for _, n := range networks {
		a := op.about(n)
		if err := a.chain().Status(ctx); err != nil {
			return a.errors("STATUS", err)
		}
	}
	return nil
}

// whyNotReady returns every reason why a Setup of all networks could not succeed now.
func (eng *Engine) WhyNotReady(ctx context.Context) []error {
	reasons := []error{writable(eng.opts.StateDir, eng.opts.RecordDir, eng.Own), lackOfPrivileges()}
	host, err := eng.Store.Hosts.Open(eng.opts.HostNetNS)
	if err != nil {
		return append(reasons, err)
	}
	ctx, cancel := eng.runner.Bound(ctx, "STATUS")
	defer cancel()
	reasons = append(reasons, eng.lackOfKernel(ctx, host))
	for _, n := range eng.networks {
		reasons = append(reasons, eng.ready(ctx, n, host)...)
	}
	return append(reasons, host.Close())
}

// writable returns why nothing can be written to one of the directories.
func writable(dirs ...string) error {
	var errs []error
	for _, dir := range dirs {
		if dir == "" {
			continue // a default, below one of the others
		}
		if err := perm.Writable(dir); err != nil {
			errs = append(errs, err)
		}
	}
	return Join(errs...)
}

func lackOfPrivileges() error {
	lacks, err := perm.MissingCapabilities()
	if err != nil || len(lacks) == 0 {
		return err
	}
	return fmt.Errorf("plugins need %s, which this process lacks", strings.Join(lacks, " and "))
}

// lackOfKernel returns why the kernel or the programs of the host do not suffice for
// the plugins of the loaded networks.
func (eng *Engine) lackOfKernel(ctx context.Context, host *hostns.NetNS) error {
	var errs []error
	if err := host.Reachable(); err != nil {
		errs = append(errs, fmt.Errorf("rtnetlink: %w", err))
	}
	if eng.makesRules() {
		errs = append(errs, netfilter.Open(host.Handle, netfilter.Options{Sockets: &sockets}).Usable(ctx))
	}
	return Join(errs...)
}

// makesRules reports whether a plugin of the loaded networks makes rules in a packet
// filter.
func (eng *Engine) makesRules() bool {
	return slices.ContainsFunc(eng.networks, func(n *Network) bool {
		return slices.ContainsFunc(n.Config.Plugins, func(p *libcni.PluginConfig) bool { return known.Of(p.Network.Type).Rules != known.NoRules })
	})
}

// ready returns the reasons why the network's plugins cannot attach a container.
func (eng *Engine) ready(ctx context.Context, n *Network, host *hostns.NetNS) (reasons []error) {
	op := &operation{eng: eng, c: eng.Store.New("", host)}
	a := op.about(n)
	missing := func(typ string, err error) {
		e := a.error("STATUS", WithSentinel(err))
		e.Plugin = typ
		reasons = append(reasons, e)
	}
	type asking struct {
		plugin  *libcni.PluginConfig
		builtIn bool
	}
	var asked []asking
	for _, p := range n.Config.Plugins {
		found, err := eng.RunnerOf(n).Find(p.Network.Type)
		if err != nil {
			missing(p.Network.Type, err)
			continue
		}
		if ipam := p.Network.IPAM.Type; ipam != "" {
			if err := eng.RunnerOf(n).FindDelegate(found, ipam); err != nil {
				missing(ipam, err)
				continue
			}
		}
		if n.hasStatus() || found.Kind == runner.BuiltIn {
			asked = append(asked, asking{p, false})
		}
		if found.Kind == runner.Executable && eng.opts.Choice.BuiltIn(p.Network.Type) != nil && a.runner().AreReference(ctx, p.Network.Type, p.Network.IPAM.Type) {
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
	list := *n.Config
	list.Plugins = []*libcni.PluginConfig{p}
	if !n.hasStatus() {
		list.CNIVersion = "1.1.0" // built-in plugins know it
	}
	a := op.about(&Network{Config: &list, IfName: n.IfName, IsLo: n.IsLo})
	a.standsIn = builtIn
	return a.errors("STATUS", a.chain().Status(ctx))
}

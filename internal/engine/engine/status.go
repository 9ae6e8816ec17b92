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

	"github.com/embedcni/cni/internal/engine/container"
	"github.com/embedcni/cni/internal/kernel/netfilter"
	"github.com/embedcni/cni/internal/kernel/plainfile"
	"github.com/embedcni/cni/internal/kernel/thread"
	"github.com/embedcni/cni/internal/run/runner"
	"github.com/embedcni/cni/internal/store/conflist"
)

// statusCache lets callers share one run of STATUS, and reuses a recent success.
// It belongs to a snapshot, so a Load discards it. The lock is held for
// bookkeeping only.
type statusCache struct {
	mu   sync.Mutex
	last *statusRun
}

type statusRun struct {
	host  string        // the namespace in which the plugins run
	done  chan struct{} // closed when the other fields are set
	ended time.Time
	err   error
}

// statusFor is the time for which a success is reused: some callers ask before each Setup.
const statusFor = time.Second

// serves reports whether callers in a namespace may have the answer.
func (r *statusRun) serves(host string) bool {
	if r == nil || r.host != host {
		return false
	}
	select {
	case <-r.done:
		return r.err == nil && time.Since(r.ended) < statusFor
	default:
		return true
	}
}

// AskStatus asks the loaded networks for STATUS. Calls at once share one answer.
func (eng *Engine) AskStatus(ctx context.Context) error {
	if !slices.ContainsFunc(eng.networks, (*Network).hasStatus) {
		return nil
	}
	host, err := eng.openHost()
	if err != nil {
		return err
	}
	run := eng.status.join(ctx, eng, host)
	select {
	case <-run.done:
		return run.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// join returns the last run if it serves, or starts another one. It takes host over.
func (c *statusCache) join(ctx context.Context, s *Engine, host *container.Host) *statusRun {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last.serves(host.String()) {
		if err := host.Close(); err != nil {
			s.opts.Logger.Error("close network namespace", "error", err)
		}
		return c.last
	}
	run := &statusRun{host: host.String(), done: make(chan struct{})}
	c.last = run
	go func() {
		run.err = Join(statusOf(context.WithoutCancel(ctx), s, host, s.networks), host.Close())
		run.ended = time.Now()
		close(run.done)
	}()
	return run
}

// AskStatusOf asks networks that need not be loaded.
func (eng *Engine) AskStatusOf(ctx context.Context, networks []*Network) error {
	host, err := eng.openHost()
	if err != nil {
		return err
	}
	return Join(statusOf(ctx, eng, host, networks), host.Close())
}

// statusOf asks networks in order and stops at the first that cannot serve.
// All of them share the time of one STATUS, because a caller such as a health
// probe cannot use a later answer.
func statusOf(ctx context.Context, eng *Engine, host *container.Host, networks []*Network) error {
	ctx, cancel := eng.runner.Bound(ctx, "STATUS")
	defer cancel()
	for _, n := range networks {
		a := about(eng, n, host)
		if err := a.chain().Status(ctx); err != nil {
			return a.errors("STATUS", err)
		}
	}
	return nil
}

// WhyNotReady returns every reason why a Setup of all networks could not succeed now.
func (eng *Engine) WhyNotReady(ctx context.Context) []error {
	reasons := []error{writable(eng.opts.StateDir, eng.opts.RecordDir, eng.Own), lackOfPrivileges()}
	host, err := eng.openHost()
	if err != nil {
		return append(reasons, err)
	}
	ctx, cancel := eng.runner.Bound(ctx, "STATUS")
	defer cancel()
	r := &readiness{eng, host, append(reasons, lackOfKernel(ctx, host, eng.networks))}
	for _, n := range eng.networks {
		r.ask(ctx, n, r.find(ctx, n))
	}
	return append(r.reasons, host.Close())
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
	return Join(errs...)
}

func lackOfPrivileges() error {
	lacks, err := thread.MissingCapabilities()
	if err != nil || len(lacks) == 0 {
		return err
	}
	return fmt.Errorf("plugins need %s, which this process lacks", strings.Join(lacks, " and "))
}

// lackOfKernel returns why the kernel or the programs of the host do not suffice for
// the plugins of the networks.
func lackOfKernel(ctx context.Context, host *container.Host, networks []*Network) error {
	var errs []error
	if err := host.Reachable(); err != nil {
		errs = append(errs, fmt.Errorf("rtnetlink: %w", err))
	}
	if slices.ContainsFunc(networks, (*Network).makesRules) {
		errs = append(errs, netfilter.Open(host.Handle, netfilter.Options{Sockets: &sockets}).Usable(ctx))
	}
	return Join(errs...)
}

// makesRules reports whether a plugin of the network makes rules in a packet filter.
func (n *Network) makesRules() bool {
	return slices.ContainsFunc(n.Config.Plugins, func(p *libcni.PluginConfig) bool { return conflist.Known(p.Network.Type).Rules != conflist.NoRules })
}

// readiness collects the reasons why plugins cannot attach a container.
type readiness struct {
	eng     *Engine
	host    *container.Host
	reasons []error
}

// asked is a plugin that is asked for STATUS; with builtIn the built-in plugins of its types
// are asked in place of executables.
type asked struct {
	plugin  *libcni.PluginConfig
	builtIn bool
}

// find looks for the network's plugins, and returns those that can be asked for STATUS.
func (r *readiness) find(ctx context.Context, n *Network) (all []asked) {
	a, plugins := about(r.eng, n, r.host), r.eng.RunnerOf(n)
	missing := func(typ string, err error) {
		e := a.error("STATUS", WithSentinel(err))
		e.Plugin = typ
		r.reasons = append(r.reasons, e)
	}
	for _, p := range n.Config.Plugins {
		typ, ipam := p.Network.Type, p.Network.IPAM.Type
		found, err := plugins.Find(typ)
		if err != nil {
			missing(typ, err)
			continue
		}
		if ipam != "" {
			if err := plugins.FindDelegate(found, ipam); err != nil {
				missing(ipam, err)
				continue
			}
		}
		if n.hasStatus() || found.Kind == runner.BuiltIn {
			all = append(all, asked{p, false})
		}
		if found.Kind == runner.Executable && r.eng.opts.Choice.BuiltIn(typ) != nil && a.runner().AreReference(ctx, typ, ipam) {
			all = append(all, asked{p, true})
		}
	}
	return all
}

// ask asks plugins of a network for STATUS, one after the other to hear all of them.
func (r *readiness) ask(ctx context.Context, n *Network, all []asked) {
	for _, q := range all {
		list := *n.Config
		list.Plugins = []*libcni.PluginConfig{q.plugin}
		if !n.hasStatus() {
			list.CNIVersion = "1.1.0" // built-in plugins know it
		}
		a := about(r.eng, &Network{Config: &list, IfName: n.IfName, IsLo: n.IsLo}, r.host)
		a.standsIn = q.builtIn
		if err := a.chain().Status(ctx); err != nil {
			r.reasons = append(r.reasons, a.errors("STATUS", err))
		}
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			break // the others would say the same
		}
	}
}

// hasStatus reports whether the network is of a version that has STATUS.
func (n *Network) hasStatus() bool {
	ok, err := version.GreaterThanOrEqualTo(n.Config.CNIVersion, "1.1.0")
	return err == nil && ok
}

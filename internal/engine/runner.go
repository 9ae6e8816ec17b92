package engine

import (
	"context"
	"fmt"
	"os"

	"github.com/embedcni/cni/internal/batch"
	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/runner"
)

// chain returns the chain of the attachment's plugins, for one verb.
func (a *attachment) chain() *chain.Chain {
	c := &chain.Chain{List: a.plan.Network.Config, Path: a.pluginDirs(), CacheDir: a.op.eng.opts.StateDir, OnResult: hooks{a}.noteResult}
	if a.op.c == nil {
		return c // nothing runs
	}
	r := a.runner()
	r.Given.Batch = &batch.Batch{}
	if a.plan.Network.IsLo && r.MakesOnlyLo() {
		c.Uncached, c.OnResult = true, hooks{a}.holdResult
	}
	c.Run = func(ctx context.Context, call chain.Call) (chain.Output, error) {
		out, err := r.Run(ctx, call)
		if call.Verb == "DEL" {
			err = Join(err, a.makeAgain(ctx, a.described().LostWith(call.Plugin)))
		}
		return out, err
	}
	c.OnEnd = func(ctx context.Context, verb string) error {
		if err := r.End(ctx, verb); err != nil || verb != "ADD" {
			return err
		}
		if err := r.Durable(); err != nil {
			return a.error(verb, err)
		}
		return nil
	}
	return c
}

// cached returns the attachment in libcni's cache.
func (a *attachment) cached() chain.Cached {
	return chain.Cached{Dir: a.op.eng.opts.StateDir, List: a.plan.Network.Config, Attachment: &a.plan.Attachment}
}

// pluginDirs returns the plugin directories in the order of the attachment's Setup.
func (a *attachment) pluginDirs() []string { return Ordered(a.op.eng.opts.PluginDirs, a.plan.Dirs) }

// runner returns the runner of the attachment's plugins.
func (a *attachment) runner() *runner.Runner {
	shared := a.op.eng.RunnerOf(a.plan.Network)
	if len(a.plan.Dirs) > 0 || a.standsIn {
		own := *shared
		own.Dirs = a.pluginDirs()
		if a.standsIn {
			own.PreferAll = true
		}
		shared = &own
	}
	r := &runner.Runner{
		Runtime: shared, Plugins: &a.plugins, Network: a.plan.Network.Config,
		ContainerID: a.op.c.ID, IfName: a.plan.IfName, Container: a.inside(), Given: a.given(), Attachment: hooks{a},
	}
	if a.op.c.Host != nil {
		r.Host = a.op.c.Host.Handle
	}
	if file := a.op.c.LockFile(); file != nil {
		r.Inherit = []*os.File{file}
	}
	return r
}

// given returns the values that the attachment's plugins and its sweep are lent.
// Processes that they start keep the container's lock, as plugins do.
func (a *attachment) given() caller.Given {
	g := caller.Given{
		Record:  hooks{a},
		Filters: netfilter.Options{Sockets: &sockets, Held: a.op.c.LockFile(), Siblings: a.Siblings, Records: a.op.eng.Store.Records.Dir()},

		Deletions: &deletions,
	}
	if a.op.c.Host != nil {
		g.Conns = &a.op.c.Host.Conns
	}
	return g
}

// first returns the type of the first plugin, which may make the interface.
func (n *Network) first() string { return n.Config.Plugins[0].Network.Type }

// makesInterface reports whether the first plugin makes the interface. Others
// accept an existing one.
func (n *Network) makesInterface() bool { return known.Of(n.first()).Makes.IsNew() }

// refuseInside refuses a call from inside a registered plugin. The call would
// wait for itself if it is for the same container, or for a GC that waits for
// the plugin.
func (eng *Engine) RefuseInside(ctx context.Context) error {
	call := runner.Inside(ctx, eng.Store.Locks.Path())
	if call == nil {
		return nil
	}
	of := ""
	if call.ContainerID != "" {
		of = " of container " + string(call.ContainerID)
	}
	return fmt.Errorf("%w: %q, at %s%s, would wait for itself; have it delegate, or call when it has returned",
		ErrInsidePlugin, call.Plugin, call.Verb, of)
}

// inDoubt reports whether another container may have the attachment's addresses
// by now: an earlier DEL may have released them, or the machine was rebooted. At
// the first DEL of an attachment, they are still reserved.
func (a *attachment) inDoubt() bool {
	if a.progress.attempted {
		return false // added by this call
	}
	n := a.entry()
	return a.op.c.Rebooted || a.op.c.Damaged || a.progress.state != record.Added || n == nil || n.Failures > 0
}

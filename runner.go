package cni

import (
	"context"
	"fmt"
	"os"

	"github.com/embedcni/cni/internal/batch"
	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/runner"
)

// chain returns the chain of the attachment's plugins, for one verb.
func (a *attachment) chain() *chain.Chain {
	c := &chain.Chain{List: a.network.config, Path: a.op.pluginDirs, CacheDir: a.op.stateDir, OnResult: a.noteResult}
	if a.op.Container == nil {
		return c // nothing runs
	}
	r := a.runner()
	r.Batch = &batch.Batch{}
	c.Run = func(ctx context.Context, call chain.Call) (chain.Output, error) {
		out, err := r.Run(ctx, call)
		if call.Verb == "DEL" {
			err = join(err, a.mend(ctx, call.Plugin))
		}
		return out, err
	}
	c.OnEnd = func(ctx context.Context, verb string) error {
		if err := r.End(ctx, verb); err != nil || verb != "ADD" || a.op.MadeAs != "" {
			return err
		}
		if err := a.Durable(); err != nil {
			return a.error(verb, err)
		}
		return nil
	}
	return c
}

// runner returns the runner of the attachment's plugins.
func (a *attachment) runner() *runner.Runner {
	r := &runner.Runner{
		Runtime: a.op.runner, Plugins: &a.plugins, Network: a.network.config,
		ContainerID: a.op.ID, IfName: a.IfName, Container: a.inside(), Given: a, Attachment: a,
	}
	if a.op.Host != nil {
		r.Host = a.op.Host.Handle
	}
	if file := a.op.LockFile(); file != nil {
		r.Inherit = []*os.File{file}
	}
	return r
}

// Durable implements [runner.Attachment].
func (a *attachment) Durable() error {
	if err := a.op.Pending().Wait(); err != nil {
		return fmt.Errorf("write the attachment record to the disk: %w", err)
	}
	return nil
}

// Before implements [runner.Attachment].
func (a *attachment) Before(ctx context.Context, call chain.Call, kind runner.Kind) (chain.Call, bool, error) {
	if kind == runner.Executable && call.Verb == "ADD" && call.Plugin == known.Loopback {
		if err := a.noteLo(); err != nil {
			return call, false, err
		}
	}
	return a.sparing(ctx, call, kind)
}

// After implements [runner.Attachment].
func (a *attachment) After(ctx context.Context, call chain.Call, kind runner.Kind, err error) error {
	if kind == runner.Executable && call.Verb == "DEL" && call.Plugin == known.Loopback && caller.LoWasUp(a) {
		err = join(err, a.setLoUp())
	}
	if err == nil {
		a.noteDevice(ctx, call, kind)
	}
	return err
}

// Fail implements [runner.Attachment].
func (a *attachment) Fail(f runner.Failure) error {
	e := a.error(f.Verb, withSentinel(f.Err))
	e.Plugin, e.PluginKind = f.Plugin, PluginKind(f.Kind)
	e.Code, e.Msg, e.Details, e.Stderr = f.Code, f.Msg, f.Details, f.Stderr
	return e
}

// observer converts the calls that a Runner reports for the caller's function.
func observer(observe func(context.Context, Event)) func(context.Context, runner.Event) {
	if observe == nil {
		return nil
	}
	return func(ctx context.Context, e runner.Event) {
		observe(ctx, Event{
			Operation: e.Verb, Network: e.Network, Plugin: e.Plugin, PluginKind: PluginKind(e.Kind),
			ContainerID: e.ContainerID, IfName: e.IfName, Duration: e.Took, Err: e.Err,
		})
	}
}

// refuseInside refuses a call from inside a registered plugin. The call would
// wait for itself if it is for the same container, or for a GC that waits for
// the plugin.
func (s *snapshot) refuseInside(ctx context.Context) error {
	call := runner.Inside(ctx, s.Locks.Path())
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

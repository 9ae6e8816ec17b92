package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/thread"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/internal/run/invoke"
	"github.com/embedcni/cni/internal/store/conflist"
)

// execution is one call of one plugin, with the calls that it delegates: what comes before
// the plugin may run, its work, and what is made of the end. It has what the plugin is given
// and what its delegates print; everything that outlasts the call is the Runner's.
type execution struct {
	Runner *Runner
	call   chain.Call
	p      Provider
	given  contract.Given // the Runner's, less what this call must not have
	verb   string         // of the call of the chain's plugin
	depth  int            // how many plugins have delegated to come to this one

	mu     sync.Mutex
	stderr []byte // of executables to which it delegated
}

// newExecution returns the call of a plugin of the chain.
func newExecution(r *Runner, call chain.Call, p Provider) *execution {
	return &execution{Runner: r, call: call, p: p, given: r.Given, verb: call.Verb}
}

// runOne runs a plugin of the chain, unless missing is the reason why there is none, and
// reports its end.
func (e *execution) runOne(ctx context.Context, missing error) (_ chain.Output, err error) {
	call := e.call // as the chain asks for it; execute may change it
	ctx, end := traced(ctx, call, e.p.Kind)
	defer func() { end(err) }()
	begun := time.Now()
	var out invoke.Output
	var late error
	started := false
	if err = missing; err == nil {
		if late = e.flushBefore(ctx); late != nil && call.Verb != "DEL" {
			return chain.Output{}, late
		}
		if err = e.awaitRecord(); err == nil {
			out, err = e.execute(ctx)
			started = e.p.Kind != Executable || !errors.Is(err, invoke.ErrNotStarted)
		}
	}
	said, err := e.failed(out, err)
	e.Runner.Runtime.report(ctx, "plugin call", e.Runner.event(call.Verb, call.Plugin, e.p.Kind, time.Since(begun), err), out)
	e.Runner.Plugins.ended(call, started, err != nil)
	if call.Verb == "DEL" && said.is(unknownContainer) {
		err = nil // the code means that there is nothing to clean
	}
	return chain.Output{Stdout: out.Stdout, Valid: e.p.Kind == BuiltIn}, both(late, err)
}

// failed returns the failure of the call, nil if it succeeded, and the caller's error for
// it.
func (e *execution) failed(out invoke.Output, err error) (*Failure, error) {
	f := failure(e.call, e.p.Kind, out, err)
	if f == nil {
		return nil, nil
	}
	return f, e.Runner.Attachment.Fail(*f)
}

// both returns both errors, or the one that there is.
func both(late, err error) error {
	if late == nil {
		return err
	}
	return joined.Errors(late, err)
}

// flushBefore applies the batched changes before a plugin that may depend on them, but not
// before a DEL by which an ADD undoes its work.
func (e *execution) flushBefore(ctx context.Context) error {
	if e.p.Kind == BuiltIn || e.call.Verb != e.verb {
		return nil
	}
	return e.Runner.flush(ctx, e.given.Batch, e.verb)
}

// awaitRecord waits for the record before a plugin runs that may write files.
// The record must survive a power cut before anything else does. A power cut
// clears all kernel state, so built-in plugins make interfaces and rules while
// the record is on its way to the disk. The built-in host-local itself waits
// just before it writes.
func (e *execution) awaitRecord() error {
	builtIn := e.p.Kind == BuiltIn && (conflist.Known(e.call.Plugin).KernelOnly || e.call.Plugin == conflist.HostLocal)
	if e.call.Verb != "ADD" || builtIn {
		return nil
	}
	return e.Runner.Attachment.Durable()
}

// execute runs a plugin of a chain, within its time for the verb.
func (e *execution) execute(ctx context.Context) (out invoke.Output, err error) {
	var run bool
	e.call, run, err = e.Runner.Attachment.Before(e.call, e.p.Kind)
	if err != nil || !run {
		return out, err
	}
	end, err := e.alone(ctx)
	if err != nil {
		return out, err
	}
	defer e.witness(ctx)()
	bound, cancel := e.Runner.Runtime.Bound(ctx, e.verb)
	defer cancel()
	e.given.Batch.For(e.call.Plugin)
	if e.verb != "ADD" && e.verb != "DEL" {
		e.given.Batch = nil
	}
	out, err = e.run(bound)
	if eerr := end(err == nil); eerr != nil {
		e.Runner.Runtime.Logger.Warn("end of a turn", "plugin", e.call.Plugin, "error", eerr)
	}
	return out, e.Runner.Attachment.After(e.call, e.p.Kind, err)
}

// witness has the built-in plugin of the type note what the ADD of an executable makes.
// Without the note a comparison takes that for the host's, which is no reason to fail.
func (e *execution) witness(ctx context.Context) (after func()) {
	r, call := e.Runner, e.call
	if e.p.Kind != Executable || call.Verb != "ADD" || r.Host == nil {
		return func() {}
	}
	if delegate, _, ok, err := r.Delegated(call); ok && err == nil {
		call = delegate
	}
	w, ok := r.Runtime.BuiltIn(call.Plugin).(contract.Witness)
	if !ok {
		return func() {}
	}
	its, _ := r.comparer(call)
	done, err := w.Witness(contract.With(ctx, its.lent()), r.Host, call.Stdin)
	return func() {
		if err == nil {
			err = done()
		}
		if err != nil {
			r.Runtime.Logger.Debug("what the ADD has made counts as the host's",
				"container", r.ContainerID, "network", r.Network.Name, "plugin", e.call.Plugin, "error", err)
		}
	}
}

// run runs the plugin. Errors of an in-process plugin are *types.Errors, except the error
// of one that was stopped.
func (e *execution) run(ctx context.Context) (out invoke.Output, err error) {
	if e.p.Kind == Executable {
		return e.start(ctx)
	}
	if ctx.Err() != nil {
		return out, fmt.Errorf("not started: %w", context.Cause(ctx))
	}
	inner := ctx
	if e.p.Kind == Registered {
		e.given.Batch = nil // it depends on the finished work of the plugins to which it delegates
		inner = e.withPluginCall(ctx)
	}
	inner = contract.With(inner, e.lent())
	stdout, err := e.inProcess(inner, func(inner context.Context, verb, typ string, config json.RawMessage) (*types100.Result, error) {
		return e.delegate(inner, ctx, verb, typ, config)
	})
	return invoke.Output{Stdout: stdout, Stderr: e.stderr}, stopped(ctx, err)
}

// lent returns what a built-in plugin is given, with what it depends on which plugin runs.
func (e *execution) lent() contract.Given {
	given := e.given
	given.Bus, given.Durable = e.Runner.Runtime.Bus, e.Runner.Attachment.Durable
	if e.p.standIn || e.p.backend != "" {
		given.Filters.Executable, given.Filters.Detected = e.p.standIn, e.p.backend
	}
	return given
}

// start runs an executable in the host's namespace. CNI_PATH leads to executables
// beside it, which it may delegate to, even if its directory is no plugin directory
// any more.
func (e *execution) start(ctx context.Context) (invoke.Output, error) {
	r, call, env := e.Runner, e.call, e.call.Env
	if e.p.elsewhere {
		dirs := append(slices.Clone(r.Runtime.Dirs), filepath.Dir(e.p.Path))
		env = invoke.WithVariable(env, "CNI_PATH", strings.Join(dirs, string(filepath.ListSeparator)))
	}
	if err := e.sees(); err != nil {
		return invoke.Output{}, err
	}
	req := invoke.Request{
		Path:    e.p.Path,
		Root:    r.Runtime.Root,
		Env:     slices.Concat(r.Runtime.Env, env, invoke.TraceEnv(ctx)),
		Stdin:   call.Stdin,
		Inherit: r.Inherit,
	}
	if r.Host != nil {
		req.In = func(start func() error) error { return thread.In(r.Host, start) }
	}
	out, err := invoke.Run(ctx, req, invoke.Limits{})
	if call.Verb == "ADD" && errors.Is(err, invoke.ErrUnknownExit) && isResult(call.Stdin, out.Stdout) {
		return out, nil
	}
	return out, err
}

// isResult reports whether a plugin printed a complete result for its request,
// and no error. That proves that an ADD succeeded whose exit status is lost. The
// other verbs print nothing, so there is no such proof.
func isResult(request, stdout []byte) bool {
	var config, said struct {
		CNIVersion string `json:"cniVersion"`
		Code       uint   `json:"code"`
		Msg        string `json:"msg"`
	}
	if json.Unmarshal(request, &config) != nil || json.Unmarshal(stdout, &said) != nil {
		return false
	}
	return said.Code == 0 && said.Msg == "" && (said.CNIVersion == "" || said.CNIVersion == config.CNIVersion) &&
		chain.ValidateResult(stdout, config.CNIVersion) == nil
}

// deletesIPAM runs the DEL of an IPAM plugin; see [Runner.DeletesIPAM].
func (e *execution) deletesIPAM(ctx context.Context) bool {
	ctx, end := traced(ctx, e.call, e.p.Kind)
	out, err := e.execute(ctx)
	said, reported := e.failed(out, err)
	end(reported)
	return e.p.Kind == Executable && errors.Is(err, invoke.ErrNotStarted) || said == nil || said.is(unknownContainer)
}

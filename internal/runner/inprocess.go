package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/inprocess"
	"github.com/embedcni/cni/internal/invoke"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/spans"
	"github.com/embedcni/cni/plugin"
)

// delegation is one call of an in-process plugin, with the calls that it
// delegates.
type delegation struct {
	*Runner
	call    chain.Call
	chain   string // the verb of the chain; an ADD may delegate a DEL
	depth   int
	standIn bool // the plugin runs in place of an executable that may have attached the container
	given   caller.Given

	mu     sync.Mutex
	stderr []byte // of executables to which it delegated
}

// runInProcess runs a plugin in process, and returns its output. Errors are
// *types.Errors, except the error of a plugin that was stopped.
func (d *delegation) runInProcess(ctx context.Context, call chain.Call, p Provider) ([]byte, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("not started: %w", context.Cause(ctx))
	}
	container := d.Container
	if p.Kind == Registered {
		d.given.Batch = nil // it depends on the finished work of the plugins to which it delegates
		// It gets a handle of its own, because it may do anything with it.
		container = nil
	}
	inner := d.give(ctx, p)
	if p.Kind == Registered {
		inner = d.withPluginCall(inner, d.call.Verb, d.call.Plugin)
	}
	stdout, err := inprocess.Run(inner, p.plugin, inprocess.Call{
		Verb: call.Verb, Type: call.Plugin, Env: call.Env, Stdin: call.Stdin,
		Host: d.Host, Container: container, Inline: p.Kind == BuiltIn,
		Delegate: func(inner context.Context, verb, typ string, config json.RawMessage) (*types100.Result, error) {
			return d.delegate(inner, ctx, verb, typ, config)
		},
	})
	return stdout, stopped(ctx, err)
}

// give returns the context for an in-process plugin.
func (d *delegation) give(ctx context.Context, p Provider) context.Context {
	d.given.Bus, d.given.Durable = d.Bus, d.Durable
	if p.standIn || p.backend != "" {
		d.given.Filters.Executable, d.given.Filters.Detected = p.standIn, p.backend
	}
	return caller.With(ctx, d.given)
}

// mostDelegations limits the depth of delegation. The IPAM plugin of a main
// plugin is the first. The limit stops a plugin that delegates to itself.
const mostDelegations = 8

// delegate is plugin.Request.Delegate: it runs another plugin with the same
// parameters, in process or on disk. bound is the context of the delegating call.
func (d *delegation) delegate(ctx, bound context.Context, verb, typ string, config json.RawMessage) (*types100.Result, error) {
	if !slices.Contains([]string{"ADD", "DEL", "CHECK", "STATUS", "GC"}, verb) {
		return nil, plugin.Errorf(types.ErrInvalidEnvironmentVariables, "delegate to plugin %q: unknown verb %q", typ, verb)
	}
	if d.depth == mostDelegations {
		return nil, plugin.Errorf(types.ErrInternal, "delegate to plugin %q: plugin %q is the %dth that delegates", typ, d.call.Plugin, d.depth)
	}
	p, err := d.delegateOf(ctx, verb, typ)
	if err != nil {
		d.Plugins.notStarted(verb, typ)
		return nil, d.unlessNotRun(verb, typ, plugin.Errorf(types.ErrInternal, "%w", err))
	}
	if p.Kind == "" {
		return nil, nil // its ADD never ran
	}
	ctx, cancel := within(ctx, bound)
	defer cancel()
	call := chain.Call{Verb: verb, Plugin: typ, Stdin: config, Env: invoke.WithVariable(d.call.Env, "CNI_COMMAND", verb)}
	out, err := d.runDelegate(ctx, call, p)
	if e := (*types.Error)(nil); verb == "DEL" && errors.As(err, &e) && e.Code == unknownContainer {
		return nil, nil // nothing to clean, as in a chain
	}
	if err != nil || verb != "ADD" {
		return nil, d.unlessNotRun(verb, typ, err)
	}
	return delegatedResult(typ, config, out, p.Kind)
}

// unlessNotRun returns the error of a delegated plugin, or nil for a DEL after an ADD
// that did not run.
func (d *delegation) unlessNotRun(verb, typ string, err error) error {
	if verb == "DEL" && d.Plugins.NotRun(typ) {
		return nil
	}
	return err
}

// delegateOf finds the other plugin; its kind is empty if there is nothing to
// run. An executable delegates to executables, so a plugin that runs in its
// place does too, if it can.
func (d *delegation) delegateOf(ctx context.Context, verb, typ string) (Provider, error) {
	if d.standIn {
		return d.recorded(record.Plugin{Type: typ, Kind: string(Executable)})
	}
	all, err := d.providers(ctx, verb, typ, nil)
	if err != nil || len(all) == 0 {
		return Provider{}, err
	}
	return all[0], nil
}

// runDelegate runs the other plugin, and logs the call.
func (d *delegation) runDelegate(ctx context.Context, call chain.Call, p Provider) (_ []byte, err error) {
	ctx, span := spans.Plugin(ctx, call.Plugin, call.Verb, string(p.Kind))
	var late flushed
	defer func() { spans.EndPlugin(span, codeOf(late, err), err) }()
	if call.Verb == d.chain && p.Kind != BuiltIn { // not for a DEL by which an ADD undoes its work
		if late = d.flush(ctx, d.given.Batch, call.Verb); late.err != nil && call.Verb != "DEL" {
			return nil, late.err
		}
	}
	if err = d.awaitRecord(call.Verb, call.Plugin, p); err != nil {
		return nil, plugin.Errorf(types.ErrInternal, "%w", err)
	}
	begun := time.Now()
	var out invoke.Output
	if p.Kind == Executable {
		out, err = d.start(ctx, call, p)
		if errors.Is(err, invoke.ErrNotStarted) {
			d.Plugins.notStarted(call.Verb, call.Plugin)
		}
		err = delegateError(call, out, err)
	} else {
		inner := &delegation{Runner: d.Runner, call: call, chain: d.chain, depth: d.depth + 1, standIn: p.standIn, given: d.given}
		out.Stdout, err = inner.runInProcess(ctx, call, p)
		out.Stderr = inner.stderr
	}
	d.keepStderr(out.Stderr)
	d.log(ctx, "delegated plugin call", d.event(call.Verb, call.Plugin, p.Kind, time.Since(begun), err), out)
	if late.err != nil {
		return out.Stdout, errors.Join(late.err, err)
	}
	return out.Stdout, err
}

// codeOf returns the error code of a delegated call.
func codeOf(late flushed, err error) uint {
	if late.err != nil {
		return late.code
	}
	if e := (*types.Error)(nil); errors.As(err, &e) {
		return e.Code
	}
	return 0
}

func (d *delegation) keepStderr(stderr []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stderr = append(d.stderr, stderr...)
}

// within returns a context that also ends with bound.
func within(ctx, bound context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(bound, func() { cancel(context.Cause(bound)) })
	return ctx, func() { stop(); cancel(nil) }
}

// delegatedResult reads the output of a plugin for an ADD. As in a chain, that of a
// built-in plugin is known to be valid and to state its version.
func delegatedResult(typ string, config, out []byte, kind Kind) (*types100.Result, error) {
	var conf struct {
		CNIVersion string `json:"cniVersion"`
	}
	var err error
	if kind != BuiltIn {
		err = json.Unmarshal(config, &conf)
		if err == nil {
			err = chain.ValidateResult(out, conf.CNIVersion)
		}
	}
	var result *types100.Result
	if err == nil {
		result, err = chain.DecodeGiven(conf.CNIVersion, out)
	}
	if err != nil {
		return nil, plugin.Errorf(types.ErrDecodingFailure, "result of plugin %q: %w", typ, err)
	}
	return result, nil
}

package runner

import (
	"bytes"
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

// runInProcess runs the plugin, and returns its output. Errors are *types.Errors, except
// the error of a plugin that was stopped.
func (d *delegation) runInProcess(ctx context.Context, p Provider) (out invoke.Output, err error) {
	if ctx.Err() != nil {
		return out, fmt.Errorf("not started: %w", context.Cause(ctx))
	}
	c := InProcess{Call: d.call, Host: d.Host, Container: d.Container, Inline: p.Kind == BuiltIn}
	if p.Kind == Registered {
		d.given.Batch = nil // it depends on the finished work of the plugins to which it delegates
		// It gets a handle and a result of its own, because it may do anything with them.
		c.Container, c.Parsed = nil, nil
	}
	d.given = d.lent(d.given, p)
	inner := caller.With(ctx, d.given)
	if p.Kind == Registered {
		inner = d.withPluginCall(inner, d.call.Verb, d.call.Plugin)
	}
	c.Delegate = func(inner context.Context, verb, typ string, config json.RawMessage) (*types100.Result, error) {
		return d.delegate(inner, ctx, verb, typ, config)
	}
	stdout, err := c.Run(inner, p.plugin)
	return invoke.Output{Stdout: stdout, Stderr: d.stderr}, stopped(ctx, err)
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
	call := chain.Call{Verb: verb, Plugin: typ, Stdin: config, Env: invoke.WithVariable(d.call.Env, "CNI_COMMAND", verb)}
	if bytes.Equal(config, d.call.Stdin) {
		call.Parsed = d.call.Parsed
	}
	p, err := d.delegateOf(ctx, verb, typ)
	var out invoke.Output
	switch {
	case err != nil:
		d.Plugins.notStarted(verb, typ)
		err = plugin.Errorf(types.ErrInternal, "%w", err)
	case p.Kind == "":
		return nil, nil // its ADD never ran
	default:
		ctx, cancel := within(ctx, bound)
		defer cancel()
		out, err = d.runDelegate(ctx, call, p)
	}
	e := (*types.Error)(nil)
	switch {
	case verb == "DEL" && (errors.As(err, &e) && e.Code == unknownContainer || d.Plugins.NotRun(typ)):
		return nil, nil // nothing to clean
	case err != nil || verb != "ADD":
		return nil, err
	}
	return delegatedResult(typ, config, out.Stdout, p.Kind)
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
func (d *delegation) runDelegate(ctx context.Context, call chain.Call, p Provider) (out invoke.Output, err error) {
	ctx, span := spans.Plugin(ctx, call.Plugin, call.Verb, string(p.Kind))
	var late flushed
	defer func() {
		code := late.code
		if e := (*types.Error)(nil); late.err == nil && errors.As(err, &e) {
			code = e.Code
		}
		spans.EndPlugin(span, code, err)
	}()
	if call.Verb == d.chain && p.Kind != BuiltIn { // not for a DEL by which an ADD undoes its work
		if late = d.flush(ctx, d.given.Batch, call.Verb); late.err != nil && call.Verb != "DEL" {
			return out, late.err
		}
	}
	if err = d.awaitRecord(call.Verb, call.Plugin, p); err != nil {
		return out, plugin.Errorf(types.ErrInternal, "%w", err)
	}
	begun := time.Now()
	if p.Kind == Executable {
		out, err = d.start(ctx, call, p)
		if errors.Is(err, invoke.ErrNotStarted) {
			d.Plugins.notStarted(call.Verb, call.Plugin)
		}
		err = delegateError(call, out, err)
	} else {
		inner := &delegation{Runner: d.Runner, call: call, chain: d.chain, depth: d.depth + 1, standIn: p.standIn, given: d.given}
		out, err = inner.runInProcess(ctx, p)
	}
	d.mu.Lock()
	d.stderr = append(d.stderr, out.Stderr...)
	d.mu.Unlock()
	d.log(ctx, "delegated plugin call", d.event(call.Verb, call.Plugin, p.Kind, time.Since(begun), err), out)
	if late.err != nil {
		err = errors.Join(late.err, err)
	}
	return out, err
}

// within returns a context that also ends with bound.
func within(ctx, bound context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(bound, func() { cancel(context.Cause(bound)) })
	return ctx, func() { stop(); cancel(nil) }
}

// delegatedResult reads the output of a plugin for an ADD. As in a chain, that of a
// built-in plugin is known to be valid and to state its version.
func delegatedResult(typ string, config, out []byte, kind Kind) (result *types100.Result, err error) {
	version := ""
	if kind != BuiltIn {
		var conf *chain.Parsed
		if conf, err = chain.Parse(config); err == nil {
			version = conf.CNIVersion
			err = chain.ValidateResult(out, version)
		}
	}
	if err == nil {
		result, err = chain.DecodeGiven(version, out)
	}
	if err != nil {
		return nil, plugin.Errorf(types.ErrDecodingFailure, "result of plugin %q: %w", typ, err)
	}
	return result, nil
}

package runner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/run/invoke"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/plugin"
)

// Delegate is the type of [plugin.Request.Delegate].
type Delegate func(ctx context.Context, verb, typ string, config json.RawMessage) (*types100.Result, error)

// mostDelegations limits the depth of delegation. The IPAM plugin of a main
// plugin is the first. The limit stops a plugin that delegates to itself.
const mostDelegations = 8

// delegate is plugin.Request.Delegate: it runs another plugin with the same
// parameters, in process or on disk. bound is the context of the delegating call.
func (e *execution) delegate(ctx, bound context.Context, verb, typ string, config json.RawMessage) (*types100.Result, error) {
	if !slices.Contains([]string{"ADD", "DEL", "CHECK", "STATUS", "GC"}, verb) {
		return nil, plugin.Errorf(types.ErrInvalidEnvironmentVariables, "delegate to plugin %q: unknown verb %q", typ, verb)
	}
	if e.depth == mostDelegations {
		return nil, plugin.Errorf(types.ErrInternal, "delegate to plugin %q: plugin %q is the %dth that delegates", typ, e.call.Plugin, e.depth)
	}
	call := chain.Call{Verb: verb, Plugin: typ, Stdin: config, Env: invoke.WithVariable(e.call.Env, "CNI_COMMAND", verb)}
	if bytes.Equal(config, e.call.Stdin) {
		call.Parsed = e.call.Parsed
	}
	p, err := e.delegateOf(ctx, verb, typ)
	var out invoke.Output
	switch {
	case err != nil:
		e.Runner.Plugins.notStarted(verb, typ)
		err = plugin.Errorf(types.ErrInternal, "%w", err)
	case p.Kind == "":
		return nil, nil // its ADD never ran
	default:
		ctx, cancel := within(ctx, bound)
		defer cancel()
		out, err = e.runDelegate(ctx, call, p)
	}
	said := (*types.Error)(nil)
	switch {
	case verb == "DEL" && (errors.As(err, &said) && said.Code == unknownContainer || e.Runner.Plugins.NotRun(typ)):
		return nil, nil // nothing to clean
	case err != nil || verb != "ADD":
		return nil, err
	}
	return delegatedResult(typ, config, out.Stdout, p.Kind)
}

// delegateOf finds the other plugin; its kind is empty if there is nothing to
// run. An executable delegates to executables, so a plugin that runs in its
// place does too, if it can.
func (e *execution) delegateOf(ctx context.Context, verb, typ string) (Provider, error) {
	if e.p.standIn {
		return e.Runner.Runtime.recorded(record.Plugin{Type: typ, Kind: string(Executable)})
	}
	all, err := e.Runner.providers(ctx, verb, typ, nil)
	if err != nil || len(all) == 0 {
		return Provider{}, err
	}
	return all[0], nil
}

// runDelegate runs the other plugin, and logs the call.
func (e *execution) runDelegate(ctx context.Context, call chain.Call, p Provider) (out invoke.Output, err error) {
	ctx, end := traced(ctx, call, p.Kind)
	defer func() { end(err) }()
	its := &execution{Runner: e.Runner, call: call, p: p, given: e.given, verb: e.verb, depth: e.depth + 1}
	late := its.flushBefore(ctx)
	if late != nil && call.Verb != "DEL" {
		return out, late
	}
	if err = its.awaitRecord(); err != nil {
		return out, plugin.Errorf(types.ErrInternal, "%w", err)
	}
	defer its.witness(ctx)()
	begun := time.Now()
	out, err = its.run(ctx)
	e.Runner.Plugins.delegated(call.Verb, call.Plugin, err)
	if p.Kind == Executable {
		if errors.Is(err, invoke.ErrNotStarted) {
			e.Runner.Plugins.notStarted(call.Verb, call.Plugin)
		}
		err = delegateError(call, out, err)
	}
	e.mu.Lock()
	e.stderr = append(e.stderr, out.Stderr...)
	e.mu.Unlock()
	e.Runner.Runtime.log(ctx, "delegated plugin call", e.Runner.event(call.Verb, call.Plugin, p.Kind, time.Since(begun), err), out)
	return out, both(late, err)
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

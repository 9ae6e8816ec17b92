package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/batch"
	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/firewalld"
	"github.com/embedcni/cni/internal/inprocess"
	"github.com/embedcni/cni/internal/invoke"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// delegation is one call of an in-process plugin, and what it delegates.
type delegation struct {
	*attachment
	bound context.Context // ends with the time of the call
	call  chain.Call
	chain string // the verb of the chain, where an ADD may delegate a DEL
	depth int

	standIn bool // the plugin runs for what an executable may have attached

	mu     sync.Mutex
	stderr []byte // of executables that it delegated to
}

// runInProcess runs a plugin in process, and returns what it prints. The errors
// are *types.Errors, but for the one that the plugin was stopped with.
func (d *delegation) runInProcess(ctx context.Context, call chain.Call, p provider) ([]byte, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("not started: %w", context.Cause(ctx))
	}
	inner, container := caller.With(ctx, d.attachment), d.inside()
	inner = firewalld.With(inner, d.op.bus)
	inner = caller.WithNetfilter(inner, func(o *netfilter.Options) {
		o.Siblings = d.sharing
		if p.standIn || p.backend != "" {
			o.AnyForm, o.Detected = p.standIn, p.backend
		}
	})
	if p.kind == PluginRegistered {
		inner = batch.With(inner, nil) // it counts on what it delegates being done
		inner = d.withPluginCall(inner)
		container = nil // one of its own: nobody knows what it does with it
	}
	var host *netns.Handle
	if d.op.host != nil {
		host = d.op.host.Handle
	}
	stdout, err := inprocess.Run(inner, p.plugin, inprocess.Call{
		Verb: call.Verb, Type: call.Plugin, Env: call.Env, Stdin: call.Stdin,
		Host: host, Container: container, Inline: p.kind == PluginBuiltIn, Delegate: d.delegate,
	})
	if ended := ctx.Err(); err != nil && ended != nil && errors.Is(err, ended) {
		err = &stoppedError{err, context.Cause(ctx)}
	}
	return stdout, err
}

// stoppedError is what an in-process plugin said when its context had ended,
// and why that had.
type stoppedError struct{ said, cause error }

func (s *stoppedError) Error() string {
	cause := s.cause.Error()
	if d := (*deadlineError)(nil); errors.As(s.cause, &d) {
		cause = "stopped: " + d.bound()
	}
	if said := s.said.Error(); said != context.DeadlineExceeded.Error() && said != context.Canceled.Error() {
		cause += ": " + said
	}
	return cause
}

func (s *stoppedError) Unwrap() []error { return []error{s.cause, s.said} }

// mostDelegations is how deep plugins may delegate. An IPAM plugin of the main
// plugin's is one; a plugin that delegates to itself without end is found.
const mostDelegations = 8

// delegate is plugin.Request.Delegate: it runs another plugin with the same
// parameters, in process or on disk.
func (d *delegation) delegate(ctx context.Context, verb, typ string, config json.RawMessage) (*types100.Result, error) {
	if !slices.Contains([]string{"ADD", "DEL", "CHECK", "STATUS", "GC"}, verb) {
		return nil, plugin.Errorf(types.ErrInvalidEnvironmentVariables, "delegate to plugin %q: unknown verb %q", typ, verb)
	}
	if d.depth == mostDelegations {
		return nil, plugin.Errorf(types.ErrInternal, "delegate to plugin %q: plugin %q is the %dth that delegates", typ, d.call.Plugin, d.depth)
	}
	p, err := d.delegateOf(ctx, verb, typ)
	if err != nil {
		d.ran.fail(verb, typ)
		return nil, d.unlessNeverRan(verb, typ, plugin.Errorf(types.ErrInternal, "%w", err))
	}
	if p.kind == "" {
		return nil, nil // its ADD never ran
	}
	ctx, cancel := within(ctx, d.bound)
	defer cancel()
	call := chain.Call{Verb: verb, Plugin: typ, Stdin: config, Env: withVariable(d.call.Env, "CNI_COMMAND", verb)}
	out, err := d.runDelegate(ctx, call, p)
	if e := (*types.Error)(nil); verb == "DEL" && errors.As(err, &e) && e.Code == unknownContainer {
		return nil, nil // nothing to clean, as in a chain
	}
	if err != nil || verb != "ADD" {
		return nil, d.unlessNeverRan(verb, typ, err)
	}
	return delegatedResult(typ, config, out)
}

// delegateOf finds the other plugin; its kind is empty if there is nothing to
// run. An executable delegates to executables, so a plugin that runs in its
// place does, if it can.
func (d *delegation) delegateOf(ctx context.Context, verb, typ string) (provider, error) {
	if d.standIn {
		return d.op.recorded(record.Plugin{Type: typ, Kind: string(PluginExecutable)})
	}
	all, err := d.providers(ctx, verb, typ)
	if err != nil || len(all) == 0 {
		return provider{}, err
	}
	return all[0], nil
}

// runDelegate runs the other plugin, and tells the log.
func (d *delegation) runDelegate(ctx context.Context, call chain.Call, p provider) (_ []byte, said error) {
	ctx, span := d.op.spans.plugin(ctx, call, p.kind)
	defer func() { endPlugin(span, said) }()
	var late error
	if call.Verb == d.chain { // not for a DEL by which an ADD undoes what it did
		if late = d.flushBefore(ctx, call.Verb, p); late != nil && call.Verb != "DEL" {
			return nil, late
		}
	}
	ctx, err := d.op.awaitRecord(ctx, call.Verb, call.Plugin, p)
	if err != nil {
		return nil, plugin.Errorf(types.ErrInternal, "%w", err)
	}
	start := time.Now()
	var out invoke.Output
	if p.kind == PluginExecutable {
		out, err = d.start(ctx, call, p)
		if errors.Is(err, invoke.ErrNotStarted) {
			d.ran.fail(call.Verb, call.Plugin)
		}
		err = delegateError(call, out, err)
	} else {
		inner := &delegation{attachment: d.attachment, bound: ctx, call: call, chain: d.chain, depth: d.depth + 1, standIn: p.standIn}
		out.Stdout, err = inner.runInProcess(ctx, call, p)
		out.Stderr = inner.stderr
	}
	d.keepStderr(out.Stderr)
	d.op.log(ctx, "delegated plugin call", d.event(call, p.kind, time.Since(start), err), out)
	return out.Stdout, join(late, err)
}

func (d *delegation) keepStderr(stderr []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stderr = append(d.stderr, stderr...)
}

// within is ctx, and ends with bound too.
func within(ctx, bound context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(bound, func() { cancel(context.Cause(bound)) })
	return ctx, func() { stop(); cancel(nil) }
}

// variable returns the value of an environment variable, or "" if it is not set.
func variable(env []string, name string) string {
	for _, entry := range slices.Backward(env) {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	return ""
}

func withVariable(env []string, name, value string) []string {
	env = slices.DeleteFunc(slices.Clone(env), func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
	return append(env, name+"="+value)
}

// delegateError is the error that an executable printed, or how it ended.
func delegateError(call chain.Call, out invoke.Output, err error) error {
	if err == nil {
		return nil
	}
	said, err := executableError(out, err)
	if said != nil && closed(said.Error()) == "" {
		said = &types.Error{Code: said.Code, Msg: noMessage}
	}
	if said != nil {
		return said
	}
	return plugin.Errorf(types.ErrInternal, "plugin type=%q failed (%s): %w", call.Plugin, libcniVerb(call.Verb), err)
}

// delegatedResult reads what a plugin printed for an ADD.
func delegatedResult(typ string, config, out []byte) (*types100.Result, error) {
	var conf struct {
		CNIVersion string `json:"cniVersion"`
	}
	err := json.Unmarshal(config, &conf)
	if err == nil {
		err = chain.ValidateResult(out, conf.CNIVersion)
	}
	var result *types100.Result
	if err == nil {
		result, err = inprocess.DecodeResult(conf.CNIVersion, out)
	}
	if err != nil {
		return nil, plugin.Errorf(types.ErrDecodingFailure, "result of plugin %q: %w", typ, err)
	}
	return result, nil
}

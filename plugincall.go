package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/invoke"
	"github.com/embedcni/cni/internal/known"
)

// runPlugin runs the plugin of a type for an attachment. Where nobody knows
// which of two attached it, a CHECK passes if that of either does, and a DEL
// runs both.
func (a *attachment) runPlugin(ctx context.Context, call chain.Call) (chain.Output, error) {
	if call.Verb == "DEL" {
		out, err := a.runProviders(ctx, call)
		return out, join(err, a.mend(ctx, call.Plugin))
	}
	return a.runProviders(ctx, call)
}

func (a *attachment) runProviders(ctx context.Context, call chain.Call) (chain.Output, error) {
	providers, err := a.providers(ctx, call.Verb, call.Plugin)
	if err != nil {
		return a.runOne(ctx, call, provider{}, err)
	}
	var out chain.Output
	var errs []error
	for _, p := range providers {
		if out, err = a.runOne(ctx, call, p, nil); err == nil && call.Verb == "CHECK" {
			return out, nil
		}
		errs = append(errs, err)
	}
	return out, join(errs...)
}

// runOne runs a plugin, unless err says why there is none: it bounds its time,
// and tells the log and the observer how it ended.
func (a *attachment) runOne(ctx context.Context, call chain.Call, p provider, err error) (_ chain.Output, said error) {
	ctx, span := a.op.spans.plugin(ctx, call, p.kind)
	defer func() { endPlugin(span, said) }()
	start := time.Now()
	var out invoke.Output
	var late error
	started := false
	if err == nil {
		if late = a.flushBefore(ctx, call.Verb, p); late != nil && call.Verb != "DEL" {
			return chain.Output{}, late
		}
		inner, rerr := a.op.awaitRecord(ctx, call.Verb, call.Plugin, p)
		if err = rerr; err == nil {
			out, err = a.execute(inner, call, p)
			started = p.kind != PluginExecutable || !errors.Is(err, invoke.ErrNotStarted)
			if err == nil {
				a.noteDevice(inner, call, p.kind)
			}
		}
	}
	perr := pluginError(a, call, p.kind, out, err)
	a.op.report(ctx, a.event(call, p.kind, time.Since(start), perr), out)
	switch {
	case call.Verb == "ADD" && started:
		a.ran.start(call.Plugin)
	case call.Verb == "DEL" && perr != nil:
		a.failed = append(a.failed, call)
	}
	if e := (*Error)(nil); call.Verb == "DEL" && errors.As(perr, &e) && e.Code == unknownContainer {
		perr = nil // by this code a plugin says that there is nothing to clean
	}
	return chain.Output{Stdout: out.Stdout, Valid: p.kind == PluginBuiltIn}, join(late, perr)
}

// inherited is the container's lock: a plugin that outlives a killed runtime
// keeps it, so that nobody works on the container beside it.
func (a *attachment) inherited() []*os.File {
	if a.op.held == nil || a.op.held.File() == nil {
		return nil
	}
	return []*os.File{a.op.held.File()}
}

func (a *attachment) event(call chain.Call, kind PluginKind, took time.Duration, err error) Event {
	return Event{
		Operation: call.Verb, Network: a.network.config.Name, Plugin: call.Plugin, PluginKind: kind,
		ContainerID: string(a.op.id), IfName: a.IfName, Duration: took, Err: err,
	}
}

// execute runs a plugin of a chain, within the time that it has for the verb.
func (a *attachment) execute(ctx context.Context, call chain.Call, p provider) (invoke.Output, error) {
	call, run, err := a.sparing(ctx, call, p.kind)
	if err != nil || !run {
		return invoke.Output{}, err
	}
	ctx, cancel := a.op.bound(ctx, call.Verb)
	defer cancel()
	switch {
	case p.kind == PluginExecutable && call.Plugin == known.Loopback:
		return a.startLoopback(ctx, call, p)
	case p.kind == PluginExecutable && call.Verb == "ADD":
		return a.startAhead(ctx, call, p)
	case p.kind == PluginExecutable:
		return a.start(ctx, call, p)
	}
	d := &delegation{attachment: a, bound: ctx, call: call, chain: call.Verb, standIn: p.standIn}
	stdout, err := d.runInProcess(ctx, call, p)
	return invoke.Output{Stdout: stdout, Stderr: d.stderr}, err
}

// bound is the time that a plugin has for a verb.
func (s *snapshot) bound(ctx context.Context, verb string) (context.Context, context.CancelFunc) {
	limit := s.timeouts.of(verb)
	if limit <= 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, limit, &deadlineError{verb, limit})
}

// start runs an executable in the host's namespace. It finds those that it
// delegates to beside it, also where that is no plugin directory any more.
func (a *attachment) start(ctx context.Context, call chain.Call, p provider) (invoke.Output, error) {
	env := call.Env
	if p.elsewhere {
		dirs := append(slices.Clone(a.op.pluginDirs), filepath.Dir(p.path))
		env = withVariable(env, "CNI_PATH", strings.Join(dirs, string(filepath.ListSeparator)))
	}
	req := invoke.Request{
		Path:    p.path,
		Env:     slices.Concat(a.op.env, env, invoke.TraceEnv(ctx)),
		Stdin:   call.Stdin,
		Inherit: a.inherited(),
	}
	if a.op.host != nil && a.op.host.Handle != nil {
		req.NetNS = a.op.host.Handle
	}
	out, err := invoke.Run(ctx, req, invoke.Limits{})
	if call.Verb == "ADD" && errors.Is(err, invoke.ErrUnknownExit) && isResult(call.Stdin, out.Stdout) {
		return out, nil
	}
	return out, err
}

// isResult reports whether a plugin printed a complete result for its request,
// and no error. Of an ADD whose exit status is lost it is the proof: of the other
// verbs, which print nothing, there is none.
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

// deadlineError says that it was this library's bound that ended a plugin.
type deadlineError struct {
	verb  string
	limit time.Duration
}

func (d *deadlineError) Error() string { return "killed: " + d.bound() }

func (d *deadlineError) bound() string {
	return fmt.Sprintf("took longer than the %v that a plugin has for %s (see WithTimeouts)", d.limit, d.verb)
}

func (d *deadlineError) Unwrap() error { return context.DeadlineExceeded }

// report tells the log and the observer of a plugin's call.
func (s *snapshot) report(ctx context.Context, e Event, out invoke.Output) {
	s.log(ctx, "plugin call", e, out)
	if s.observe != nil {
		s.observe(ctx, e)
	}
}

// log notes a plugin's call. stderr is the plugin's log (CNI specification
// 1.1.0, section 5), so it is worth a line of its own level.
func (s *snapshot) log(ctx context.Context, what string, e Event, out invoke.Output) {
	level := slog.LevelDebug
	if len(out.Stderr) > 0 {
		level = slog.LevelInfo
	}
	if !s.logger.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("operation", e.Operation), slog.String("network", e.Network),
		slog.String("plugin", e.Plugin), slog.String("kind", string(e.PluginKind)),
		slog.String("container", e.ContainerID), slog.String("interface", e.IfName), slog.Duration("took", e.Duration),
	}
	if e.Err != nil {
		// As text, because handlers that print %+v would have stderr twice.
		attrs = append(attrs, slog.String("error", e.Err.Error()))
	}
	if len(out.Stderr) > 0 {
		attrs = append(attrs, slog.String("stderr", string(out.Stderr)))
	}
	s.logger.LogAttrs(ctx, level, what, attrs...)
}

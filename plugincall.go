package cni

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/invoke"
)

// runPlugin runs one plugin for an attachment: it finds it, bounds its time,
// and tells the log and the observer how it ended.
func (a *attachment) runPlugin(ctx context.Context, call chain.Call) ([]byte, error) {
	start := time.Now()
	out, err := a.op.execute(ctx, call, a.op.host, a.inherited())
	perr := pluginError(a, call.Verb, call.Plugin, out, err)
	a.op.report(ctx, a.event(call, time.Since(start), perr), out)
	if call.Verb == "ADD" && neverRan(perr) {
		a.missing = append(a.missing, call.Plugin)
	}
	if e := (*Error)(nil); call.Verb == "DEL" && errors.As(perr, &e) && e.Code == unknownContainer {
		return nil, nil // by this code a plugin says that there is nothing to clean
	}
	return out.Stdout, perr
}

// neverRan tells whether a plugin failed before it was started: it could not be
// found, or its file could not be trusted.
func neverRan(err error) bool {
	return errors.Is(err, ErrPluginNotFound) || errors.Is(err, ErrInsecureFile)
}

// inherited is the container's lock: a plugin that outlives a killed runtime
// keeps it, so that nobody works on the container beside it.
func (a *attachment) inherited() []*os.File {
	if a.op.held == nil || a.op.held.File() == nil {
		return nil
	}
	return []*os.File{a.op.held.File()}
}

func (a *attachment) event(call chain.Call, took time.Duration, err error) Event {
	return Event{
		Operation: call.Verb, Network: a.network.config.Name, Plugin: call.Plugin,
		ContainerID: a.op.id, IfName: a.IfName, Duration: took, Err: err,
	}
}

// execute runs a plugin's executable in the host's namespace.
func (s *snapshot) execute(ctx context.Context, call chain.Call, host *hostNetNS, inherit []*os.File) (invoke.Output, error) {
	path, err := invoke.Find(call.Plugin, s.pluginDirs, s.allowInsecure)
	if err != nil {
		return invoke.Output{}, err
	}
	if limit := s.timeouts.of(call.Verb); limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, &deadlineError{call.Verb, limit})
		defer cancel()
	}
	req := invoke.Request{
		Path:    path,
		Env:     slices.Concat(s.env, call.Env, invoke.TraceEnv(ctx)),
		Stdin:   call.Stdin,
		Inherit: inherit,
	}
	if host != nil {
		req.NetNS = host.netNS()
	}
	return invoke.Run(ctx, req, invoke.Limits{})
}

// deadlineError says that it was this library's bound that ended a plugin.
type deadlineError struct {
	verb  string
	limit time.Duration
}

func (d *deadlineError) Error() string {
	return fmt.Sprintf("killed: took longer than the %v that a plugin has for %s (see WithTimeouts)", d.limit, d.verb)
}

func (d *deadlineError) Unwrap() error { return context.DeadlineExceeded }

// report tells the log and the observer of a plugin's call. stderr is the
// plugin's log (CNI specification 1.1.0, section 5), so it is worth a line of
// its own level.
func (s *snapshot) report(ctx context.Context, e Event, out invoke.Output) {
	level := slog.LevelDebug
	attrs := []slog.Attr{
		slog.String("operation", e.Operation), slog.String("network", e.Network), slog.String("plugin", e.Plugin),
		slog.String("container", e.ContainerID), slog.String("interface", e.IfName), slog.Duration("took", e.Duration),
	}
	if e.Err != nil {
		// As text, because handlers that print %+v would have stderr twice.
		attrs = append(attrs, slog.String("error", e.Err.Error()))
	}
	if len(out.Stderr) > 0 {
		level = slog.LevelInfo
		attrs = append(attrs, slog.String("stderr", string(out.Stderr)))
	}
	s.logger.LogAttrs(ctx, level, "plugin call", attrs...)
	if s.observe != nil {
		s.observe(ctx, e)
	}
}

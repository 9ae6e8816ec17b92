package runner

import (
	"context"
	"log/slog"
	"time"

	"github.com/embedcni/cni/internal/run/invoke"
)

// Event describes one plugin call; see cni.Event.
type Event struct {
	Operation, Network, Plugin      string
	PluginKind, ContainerID, IfName string
	Duration                        time.Duration
	Err                             error
}

// VerbRepair stands for the verb in the failures and events of a repair. The
// specification has no such verb.
const VerbRepair = "REPAIR"

// ReportRepair reports the repair of the part of one plugin to the log and the
// observer.
func (r *Runner) ReportRepair(ctx context.Context, typ string, took time.Duration, err error) {
	r.Runtime.report(ctx, "plugin call", r.event(VerbRepair, typ, BuiltIn, took, err), invoke.Output{})
}

// event describes a plugin's call for the attachment.
func (r *Runner) event(verb, plugin string, kind Kind, took time.Duration, err error) Event {
	return Event{
		Operation: verb, Network: r.Network.Name, Plugin: plugin, PluginKind: string(kind),
		ContainerID: string(r.ContainerID), IfName: r.IfName, Duration: took, Err: err,
	}
}

// report reports a plugin's call to the log and the observer.
func (r *Runtime) report(ctx context.Context, title string, e Event, out invoke.Output) {
	r.log(ctx, title, e, out)
	if r.Observe != nil {
		r.Observe(ctx, e)
	}
}

// log writes a line about a plugin's call. stderr is the plugin's log (CNI
// specification 1.1.0, section 5), so it raises the level.
func (r *Runtime) log(ctx context.Context, title string, e Event, out invoke.Output) {
	level := slog.LevelDebug
	if len(out.Stderr) > 0 {
		level = slog.LevelInfo
	}
	if !r.Logger.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("operation", e.Operation), slog.String("network", e.Network),
		slog.String("plugin", e.Plugin), slog.String("kind", e.PluginKind),
		slog.String("container", e.ContainerID), slog.String("interface", e.IfName), slog.Duration("took", e.Duration),
	}
	if e.Err != nil {
		// As text: handlers that print %+v would print stderr twice.
		attrs = append(attrs, slog.String("error", e.Err.Error()))
	}
	if len(out.Stderr) > 0 {
		attrs = append(attrs, slog.String("stderr", string(out.Stderr)))
	}
	r.Logger.LogAttrs(ctx, level, title, attrs...)
}

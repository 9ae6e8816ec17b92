package netconf

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/embedcni/cni"
)

// WatchOptions configures Watch.
type WatchOptions struct {
	// Settle is how long no file must change before the files are read, 100 ms by
	// default. While changes continue, they are read after ten times as long.
	Settle time.Duration
	// Every is the interval at which the files' times are compared, for changes that the
	// kernel does not announce, and for other options of a Load; 10 s by default.
	Every time.Duration

	// Report is called with each event, by the goroutine that called Watch. It may call
	// methods of the Runtime, and must not wait for the Watch to end.
	Report func(WatchEvent)
	// Logger gets the same events. Nil logs nothing.
	Logger *slog.Logger
}

// WatchKind is the kind of a [WatchEvent].
type WatchKind string

const (
	// Loaded: the networks of the files are in use now.
	Loaded WatchKind = "loaded"
	// Unchanged: the files were read, and are those in use.
	Unchanged WatchKind = "unchanged"
	// Kept: the files cannot be loaded; see Err. The networks stay as they are; if there are
	// none, String says that nothing is loaded.
	Kept WatchKind = "kept"
	// Unloaded: the files are gone, and so are the networks; see Err.
	Unloaded WatchKind = "unloaded"
	// Failed: not every change is noticed; see Err. Watch keeps trying.
	Failed WatchKind = "failed"
)

// WatchEvent is something that a Watch found: what a Reload has, or Err of Failed.
type WatchEvent struct {
	Time time.Time
	Kind WatchKind
	cni.Reloaded

	empty bool // no network is in use
}

// String describes the event in a line.
func (e WatchEvent) String() string {
	s := e.happened()
	for _, part := range []struct {
		key   string
		names []string
	}{{"added", e.Added}, {"removed", e.Removed}, {"changed", e.Changed}} {
		if len(part.names) > 0 {
			s += fmt.Sprintf(" %s=%s", part.key, strings.Join(part.names, ","))
		}
	}
	for _, f := range e.Skipped {
		s += " skipped=" + f.Path
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// happened says what has become of the networks.
func (e WatchEvent) happened() string {
	if e.Kind == Kept && e.empty {
		return "loaded nothing"
	}
	return string(e.Kind)
}

// Watch follows the configuration files of a Runtime until ctx ends: it calls Reload once it
// has begun, and after each change of a file that the options of the last New or Load
// name. What becomes of the networks is said there.
//
// Directories may come, go and be replaced, at any place in the path and behind symbolic
// links. Changes that the kernel does not announce, such as a mount over a directory or a
// change on another machine, are noticed after WatchOptions.Every.
//
// Watch returns nil when ctx has ended; everything that it has started has ended then,
// and all that it has opened is closed. It returns an error if it cannot begin, for
// example because too many inotify instances are in use. A second Watch does the same
// work again, and no harm.
func Watch(ctx context.Context, rt *cni.Runtime, o WatchOptions) error {
	if o.Settle < 0 || o.Every < 0 {
		return fmt.Errorf("watch: Settle or Every is negative: %w", cni.ErrInvalidArgument)
	}
	if o.Settle == 0 {
		o.Settle = 100 * time.Millisecond
	}
	if o.Every == 0 {
		o.Every = 10 * time.Second
	}
	if ctx.Err() != nil {
		return nil
	}
	compare := time.NewTicker(o.Every)
	defer compare.Stop()
	f := &follower{
		sources: rt.Sources, look: func() { o.reload(rt) },
		failed:  func(err error) { o.tell(WatchEvent{Kind: Failed, Reloaded: cni.Reloaded{Err: err}}) },
		compare: compare.C, settle: o.Settle, open: fsnotify.NewWatcher, add: (*fsnotify.Watcher).Add,
	}
	return f.until(ctx)
}

// reload reads the files, and reports the outcome.
func (o *WatchOptions) reload(rt *cni.Runtime) {
	e := WatchEvent{Kind: Kept, Reloaded: rt.Reload()}
	switch {
	case e.Loaded:
		e.Kind = Loaded
	case e.Unloaded:
		e.Kind = Unloaded
	case e.Reloaded.Unchanged:
		e.Kind = Unchanged
	default:
		e.empty = len(rt.GetConfig().Networks) == 0
	}
	o.tell(e)
}

// tell reports an event to the log and to the caller.
func (o *WatchOptions) tell(e WatchEvent) {
	e.Time = time.Now()
	level := slog.LevelInfo
	switch {
	case e.Err != nil:
		level = slog.LevelWarn
	case e.Kind == Unchanged:
		level = slog.LevelDebug
	}
	if o.Logger != nil {
		o.Logger.Log(context.Background(), level, "watch of the configuration: "+e.happened(),
			"added", e.Added, "removed", e.Removed, "changed", e.Changed, "error", e.Err)
	}
	if o.Report != nil {
		o.Report(e)
	}
}

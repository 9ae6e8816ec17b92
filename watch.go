package cni

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/embedcni/cni/internal/conflist"
	"github.com/embedcni/cni/internal/confwatch"
)

// WatchOptions configures Watch.
type WatchOptions struct {
	// Settle is how long no file must change before the files are read, 100 ms by
	// default. While changes continue, they are read after ten times as long.
	Settle time.Duration

	// Report is called with each event, by the goroutine that called Watch. It may call
	// methods of the Runtime but Load, after which the files are read again, and must not
	// wait for the Watch to end. The log has the same events.
	Report func(WatchEvent)
}

// WatchEventKind is the kind of a WatchEvent.
type WatchEventKind string

const (
	// WatchLoaded: the networks of the files are in use now.
	WatchLoaded WatchEventKind = "loaded"
	// WatchUnchanged: the files were read, and are those in use.
	WatchUnchanged WatchEventKind = "unchanged"
	// WatchKept: the files cannot be loaded; see Err. The networks stay as they are.
	WatchKept WatchEventKind = "kept"
	// WatchUnloaded: the files are gone, and so are the networks; see Err.
	WatchUnloaded WatchEventKind = "unloaded"
	// WatchFailed: not every change is noticed; see Err. Watch keeps trying.
	WatchFailed WatchEventKind = "failed"
)

// WatchEvent is something that a Watch found.
type WatchEvent struct {
	Time time.Time
	Kind WatchEventKind
	// Added, Removed and Changed are the names of networks, of WatchLoaded and
	// WatchUnloaded. A network is changed if its configuration or the name of its
	// interface is another one.
	Added, Removed, Changed []string
	// Skipped are files that cannot be used and are not needed, of WatchLoaded.
	Skipped []SkippedFile
	Err     error
}

// String describes the event in a line.
func (e WatchEvent) String() string {
	s := string(e.Kind)
	for _, part := range e.names() {
		s += fmt.Sprintf(" %s=%s", part.Key, strings.Join(part.Value.Any().([]string), ","))
	}
	for _, f := range e.Skipped {
		s += " skipped=" + f.Path
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e WatchEvent) names() (attrs []slog.Attr) {
	for _, part := range []struct {
		key   string
		names []string
	}{{"added", e.Added}, {"removed", e.Removed}, {"changed", e.Changed}} {
		if len(part.names) > 0 {
			attrs = append(attrs, slog.Any(part.key, part.names))
		}
	}
	return attrs
}

// Watch follows the configuration files until ctx ends: those of WithDefaultConf,
// WithAllConf, WithNetworkName, WithConfFile, WithConfListFile and WithConfiguration,
// with the options of the last New or Load. It loads the files once it has begun, and
// after each change. So it also makes up for a Load that failed because a file was
// missing.
//
// The networks are replaced as by Load: all or none. While the files cannot be loaded,
// the networks stay as they are, and the reason is an event (WatchKept), in the log, and
// in Ready. If nothing that the options name exists any more, the networks are unloaded:
// Setup and Status then return ErrCNINotInitialized; Remove and Check go on for
// containers that are attached. A network that was chosen by WithNetworkName is never
// replaced by another. A Load meanwhile takes effect at once, and its options are
// followed from then on.
//
// Directories may come, go and be replaced, at any place in the path and behind symbolic
// links. Changes that the kernel does not announce, such as a mount over a directory or a
// change on another machine, are noticed after the next Setup, Status or Ready: these
// have the Watch compare the files' times, and do not wait for it.
//
// Watch returns nil when ctx has ended; everything that it has started has ended then,
// and all that it has opened is closed. It returns an error if it cannot begin, for
// example because too many inotify instances are in use. A second Watch does the same
// work again, and no harm.
func (r *Runtime) Watch(ctx context.Context, o WatchOptions) error {
	if o.Settle < 0 {
		return fmt.Errorf("watch: Settle is negative: %w", ErrInvalidArgument)
	}
	if o.Settle == 0 {
		o.Settle = 100 * time.Millisecond
	}
	if ctx.Err() != nil {
		return nil
	}
	w := &watching{runtime: r, options: o, asked: make(chan struct{}, 1), loaded: make(chan struct{}, 1)}
	r.watches.add(w)
	defer r.watches.remove(w)
	core := &confwatch.Watch{
		Sources: r.sources, Look: w.look, Failed: w.failed,
		Asked: w.asked, Replaced: w.loaded, Settle: o.Settle,
	}
	return core.Run(ctx)
}

// watching is a Watch that runs.
type watching struct {
	runtime *Runtime
	options WatchOptions
	asked   chan struct{} // somebody relies on the configuration
	loaded  chan struct{} // by a Load
}

// look reads the files, and reports the outcome.
func (w *watching) look() {
	r := w.runtime
	r.loading.Lock()
	e := r.reread()
	r.loading.Unlock()
	w.report(e)
}

// failed is called if not every change is noticed, and with nil when that is over.
func (w *watching) failed(err error) {
	if err == nil {
		w.runtime.watches.blind.Store(nil)
		return
	}
	w.runtime.watches.blind.Store(&err)
	w.report(WatchEvent{Kind: WatchFailed, Err: err})
}

func (w *watching) report(e WatchEvent) {
	e.Time = time.Now()
	attrs := e.names()
	level := slog.LevelInfo
	switch {
	case e.Err != nil:
		level = slog.LevelWarn
		attrs = append(attrs, slog.Any("error", e.Err))
	case e.Kind == WatchUnchanged:
		level = slog.LevelDebug
	}
	logger := w.runtime.current.Load().logger
	logger.LogAttrs(context.Background(), level, "watch of the configuration: "+string(e.Kind), attrs...)
	if w.options.Report != nil {
		w.options.Report(e)
	}
}

// reread reads what the options of the last Load name, and puts it in force if it is
// valid and not what is loaded. The caller holds r.loading.
func (r *Runtime) reread() WatchEvent {
	previous, want := r.current.Load(), r.wanted
	s, err := newSnapshot(want, previous)
	asWanted := previous.wanted == want
	switch {
	case err == nil && asWanted && previous.last == nil && previous.readsAs(s):
		r.failed.Store(nil)
		r.watches.outdated.Store(nil)
		return WatchEvent{Kind: WatchUnchanged}
	case err == nil:
		s.logOddities()
		r.store(s)
		e := changes(previous.networks, s.networks)
		e.Kind, e.Skipped = WatchLoaded, slices.Clone(s.skipped)
		return e
	}
	gone := asWanted && want.isGone(previous)
	err = loadError(err)
	if !gone {
		r.failed.Store(&err)
		r.watches.outdated.Store(&err)
		return WatchEvent{Kind: WatchKept, Err: err}
	}
	if previous.last != nil {
		r.failed.Store(&err)
		r.watches.outdated.Store(nil)
		return WatchEvent{Kind: WatchUnchanged, Err: err}
	}
	r.store(previous.unloaded())
	r.failed.Store(&err)
	e := changes(previous.networks, nil)
	e.Kind, e.Err = WatchUnloaded, err
	return e
}

// readsAs reports whether the same was read from the files.
func (s *snapshot) readsAs(now *snapshot) bool {
	return slices.Equal(s.skipped, now.skipped) && slices.EqualFunc(s.networks, now.networks, func(a, b *Network) bool {
		return a.same(b) && a.path == b.path
	})
}

// unloaded returns the configuration without its networks.
func (s *snapshot) unloaded() *snapshot {
	empty := (&build{previous: s}).snapshot(s.wanted)
	empty.last = s
	return empty
}

// withNetworks returns the last configuration with networks, if a Watch found that theirs
// are gone. A container that go-cni attached is removed by it.
func (s *snapshot) withNetworks() *snapshot {
	if s.last != nil {
		return s.last
	}
	return s
}

// isGone reports whether nothing exists any more of what the options name: a directory
// without a file that may be meant, a file that does not exist. Something that cannot
// be read is not gone.
func (want *wanted) isGone(previous *snapshot) bool {
	found := false
	for _, l := range want.loaders {
		if l.from == (origin{}) {
			continue
		}
		err := l.load(&build{settings: &want.settings, previous: previous})
		none := errors.Is(err, conflist.ErrNone) && !errors.As(err, new(*conflist.FileError))
		if l.from.file != "" {
			none = errors.Is(err, fs.ErrNotExist)
		}
		if !none {
			return false
		}
		found = true
	}
	return found
}

// changes compares two lists of networks.
func changes(old, now []*Network) (e WatchEvent) {
	named := func(all []*Network, name string) (found []*Network) {
		for _, n := range all {
			if n.config.Name == name {
				found = append(found, n)
			}
		}
		return found
	}
	for _, n := range now {
		name := n.config.Name
		switch before := named(old, name); {
		case slices.Contains(e.Added, name) || slices.Contains(e.Changed, name):
		case before == nil:
			e.Added = append(e.Added, name)
		case !slices.EqualFunc(before, named(now, name), (*Network).same):
			e.Changed = append(e.Changed, name)
		}
	}
	for _, n := range old {
		if name := n.config.Name; named(now, name) == nil && !slices.Contains(e.Removed, name) {
			e.Removed = append(e.Removed, name)
		}
	}
	return e
}

// sources returns what the options of the last Load read.
func (r *Runtime) sources() (all []confwatch.Source) {
	r.loading.Lock()
	defer r.loading.Unlock()
	for _, l := range r.wanted.loaders {
		switch {
		case l.from.dir:
			all = append(all, confwatch.Source{Path: r.wanted.settings.pluginConfDir, Dir: true})
		case l.from.file != "":
			all = append(all, confwatch.Source{Path: l.from.file})
			// Also if it could not be loaded, for example because that is missing.
			if dir := conflist.Folder(l.from.file); dir != "" {
				all = append(all, confwatch.Source{Path: dir, Dir: true})
			}
		}
	}
	for _, n := range r.current.Load().withNetworks().networks {
		if n.path != "" && n.config.Name != "" { // the plugins' files of a list
			all = append(all, confwatch.Source{Path: filepath.Join(filepath.Dir(n.path), n.config.Name), Dir: true})
		}
	}
	return all
}

// watches are the Watches of a Runtime that run.
type watches struct {
	mu  sync.Mutex
	all atomic.Pointer[[]*watching]
	// outdated is why the networks in use are not those of the files, and blind why not
	// every change of the files is noticed.
	outdated, blind atomic.Pointer[error]
}

func (w *watches) add(one *watching) {
	w.change(func(all []*watching) []*watching { return append(all, one) })
}

func (w *watches) remove(one *watching) {
	w.change(func(all []*watching) []*watching {
		return slices.DeleteFunc(all, func(o *watching) bool { return o == one })
	})
}

func (w *watches) change(by func([]*watching) []*watching) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := by(slices.Clone(w.running()))
	w.all.Store(&all)
	if len(all) == 0 {
		w.outdated.Store(nil)
		w.blind.Store(nil)
	}
}

func (w *watches) running() []*watching {
	if all := w.all.Load(); all != nil {
		return *all
	}
	return nil
}

// asked is called by what relies on the configuration.
func (w *watches) asked() {
	for _, one := range w.running() {
		signal(one.asked)
	}
}

// loaded is called by Load.
func (w *watches) loaded() {
	for _, one := range w.running() {
		signal(one.loaded)
	}
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default: // there is one already
	}
}

// lack returns why the files are not what is in use, unless the networks are known to be
// too few for that reason, and why they may not be for long.
func (w *watches) lack(tooFew bool) []error {
	var errs []error
	if why := w.outdated.Load(); why != nil && !tooFew {
		errs = append(errs, *why)
	}
	if why := w.blind.Load(); why != nil {
		errs = append(errs, *why)
	}
	return errs
}

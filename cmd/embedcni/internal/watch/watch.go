// Package watch reports what becomes of a host's containers: attachments that come and go,
// whoever makes them, parts that are lost and come back, and configurations that change.
// It learns of all of this from the kernel and polls nothing.
//
//	files of the records ─► what is attached ──────────► attached, removed, failed, …
//	                                 │
//	                                 ▼ new containers
//	netlink: links, addresses, ─► quiet for 100 ms ─► Health of all ─► lost, back, …
//	routes, queues, nf_tables
//	files of configurations ─► netconf.Watch ─────────► loaded, kept, …
package watch

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/cmd/embedcni/internal/words"
	"github.com/embedcni/cni/guard"
	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/netconf"
)

// Event is something that has happened.
type Event struct {
	Time        time.Time `json:"time"`
	Event       Kind      `json:"event"`
	ContainerID string    `json:"containerID,omitempty"`
	Network     string    `json:"network,omitempty"`
	IfName      string    `json:"ifName,omitempty"`
	Owner       string    `json:"owner,omitempty"`
	Addresses   []string  `json:"addresses,omitempty"`
	// Detail says what has happened, for people.
	Detail string `json:"detail,omitempty"`
	// Added, Removed and Changed are the networks that a change of files has touched.
	Added   []string `json:"added,omitempty"`
	Removed []string `json:"removed,omitempty"`
	Changed []string `json:"changed,omitempty"`
}

// Kind is the kind of an Event.
type Kind string

const (
	// Watching: every change from here on is reported.
	Watching Kind = "watching"

	// Of attachments, by their records.
	Attaching Kind = "attaching"
	Attached  Kind = "attached"
	Detaching Kind = "detaching"
	Removed   Kind = "removed"
	Failed    Kind = "failed" // to be removed
	Damaged   Kind = "damaged"

	// Of the parts of a container, by Health.
	Lost    Kind = "lost"
	Back    Kind = "back"
	Unknown Kind = "unknown" // whether the container is healthy
	Gone    Kind = "gone"    // its namespace
	Healthy Kind = "healthy" // again: nothing is lost any more

	// Of the configuration's files; see netconf.WatchKind.
	Config Kind = "config"
	// Of a guard; see guard.Kind.
	Guard Kind = "guard"
	// Trouble: some changes may not have been noticed.
	Trouble Kind = "trouble"
)

// Options configure Run.
type Options struct {
	// Owner is the owner whose containers are watched; empty watches those of all.
	Owner string
	// Repair repairs what the owner of the Runtime has lost, as a guard does.
	Repair bool
	// Report is called with each event, by one goroutine at a time.
	Report func(Event)
}

// Run watches until ctx ends, and returns nil then. It returns an error if it cannot begin
// or go on.
func Run(ctx context.Context, rt *cni.Runtime, o Options) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w := &watcher{rt: rt, options: o, changed: make(chan struct{}, 1), verdicts: map[string]verdict{}}
	host, err := openHost(rt.GetConfig().HostNetNS)
	if err != nil {
		return err
	}
	defer func() { err = joined.Errors(err, host.close()) }()
	records, err := newRecordWatch(rt.GetConfig().RecordDir)
	if err != nil {
		return err
	}
	defer func() { err = joined.Errors(err, records.close()) }()
	if err := w.begin(records); err != nil {
		return err
	}
	parts := []func(context.Context) error{
		func(ctx context.Context) error { return w.followRecords(ctx, records) },
		func(ctx context.Context) error { return host.listen(ctx, w.wake) },
		w.followHealth,
		w.followConfig,
	}
	if o.Repair {
		parts = append(parts, w.guard)
	}
	return runAll(ctx, cancel, parts)
}

// runAll runs the parts until one fails or ctx ends, and waits for all of them.
func runAll(ctx context.Context, cancel context.CancelFunc, parts []func(context.Context) error) error {
	errs := make([]error, len(parts))
	var all sync.WaitGroup
	for i, part := range parts {
		all.Go(func() {
			defer cancel()
			if err := part(ctx); err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
				errs[i] = err
			}
		})
	}
	all.Wait()
	return joined.Errors(errs...)
}

// watcher is a Run.
type watcher struct {
	rt      *cni.Runtime
	options Options
	changed chan struct{} // has one item if something may have been lost, or come back

	mu       sync.Mutex // guards what follows, and calls of Report
	records  map[attachmentKey]cni.Attachment
	verdicts map[string]verdict
}

// wake has the containers looked at.
func (w *watcher) wake() {
	select {
	case w.changed <- struct{}{}:
	default: // a look is due
	}
}

// report reports events. The caller has the lock.
func (w *watcher) report(events ...Event) {
	for _, e := range events {
		e.Time = time.Now()
		w.options.Report(e)
	}
}

func (w *watcher) trouble(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.report(Event{Event: Trouble, Detail: err.Error()})
}

// followConfig reports what becomes of the configuration's files.
func (w *watcher) followConfig(ctx context.Context) error {
	return netconf.Watch(ctx, w.rt, netconf.WatchOptions{Report: func(e netconf.WatchEvent) {
		if e.Kind == netconf.Unchanged && e.Err == nil {
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		kind := Config
		if e.Kind == netconf.Failed {
			kind = Trouble
		}
		w.report(Event{Event: kind, Detail: configDetail(e), Added: e.Added, Removed: e.Removed, Changed: e.Changed})
	}})
}

// configDetail says what has become of the networks.
func configDetail(e netconf.WatchEvent) string {
	parts := []string{map[netconf.WatchKind]string{
		netconf.Loaded: "the files were read", netconf.Unchanged: "the files are as before",
		netconf.Kept:     "the files cannot be loaded",
		netconf.Unloaded: "the files are gone, and their networks with them",
		netconf.Failed:   "not every change of the files is noticed",
	}[e.Kind]}
	for _, of := range []struct {
		what  string
		names []string
	}{{"added", e.Added}, {"removed", e.Removed}, {"changed", e.Changed}} {
		if len(of.names) > 0 {
			parts = append(parts, of.what+" "+strings.Join(of.names, ", "))
		}
	}
	for _, file := range e.Skipped {
		parts = append(parts, "skipped "+file.Path)
	}
	if e.Err != nil {
		parts = append(parts, words.Line(e.Err))
	}
	return strings.Join(parts, "; ")
}

// guard repairs, and reports that.
func (w *watcher) guard(ctx context.Context) error {
	return guard.Run(ctx, w.rt, guard.Options{Report: func(e guard.Event) {
		if e.Kind == guard.Looked {
			return
		}
		detail := string(e.Kind)
		if d := e.Difference; d != nil {
			detail += " " + words.Part(*d)
		}
		if e.By != "" {
			detail += "; the rules were last changed by " + e.By
		}
		if e.Err != nil {
			detail += ": " + words.Line(e.Err)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.report(Event{Event: Guard, ContainerID: e.ContainerID, Detail: detail})
	}})
}

package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/embedcni/cni/internal/kernel/netfilter"
	"github.com/embedcni/cni/internal/kernel/thread"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/internal/run/runner"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/outcome"
)

// attachment is one network of an operation.
type attachment struct {
	plan     Planned
	op       *operation
	progress progress
	facts    record.Facts   // notes of built-in plugins
	plugins  runner.Plugins // the plugins that run, or ran
	lost     bool           // the interface was not in the container before its DEL
	standsIn bool           // built-in plugins answer for executables, see ready
}

// progress is the progress of an attachment's ADD.
type progress struct {
	attempted bool          // this call has begun it
	state     record.State  // on record
	partial   chain.Partial // the result of the last plugin that answered
	noted     []byte        // the result on record, if this call has noted it
	held      []byte        // a result that is noted once the ADD has ended
}

// attachments are some of one container's attachments.
type attachments []*attachment

// names returns the names of their interfaces.
func (all attachments) names() map[string]bool {
	names := make(map[string]bool, len(all))
	for _, a := range all {
		names[a.plan.IfName] = true
	}
	return names
}

// named returns the attachment with that interface name, or nil.
func (all attachments) named(ifName string) *attachment {
	for _, a := range all {
		if a.plan.IfName == ifName {
			return a
		}
	}
	return nil
}

// entry returns the attachment's part of the record, or nil if it has none.
func (a *attachment) entry() *record.Attachment {
	if a.op.c.Recorded.Record == nil {
		return nil
	}
	return a.op.c.Recorded.Record.Find(a.plan.IfName)
}

// own reports whether this owner has made the attachment, which is on record.
func (a *attachment) own() bool {
	n := a.entry()
	return n != nil && a.op.c.Recorded.Record.OwnerOf(n) == a.op.eng.opts.Owner
}

// inside returns the container's namespace if it is open and the attachment's.
func (a *attachment) inside() *netns.Handle { return a.op.c.Place.Inside(a.plan.NetNS) }

// isAlive reports whether an attachment is alive: its namespace exists and has the
// interface. Every namespace has a loopback interface, so lo is alive if an
// attachment of the same Setup is, or without one if the namespace exists.
func (a *attachment) isAlive(all attachments) (bool, error) {
	ifName := ""
	if a.described().MadeInterface() { // an interface that was never made cannot be missing
		ifName = a.plan.IfName
	}
	live, err := a.op.c.Place.Lives(a.plan.NetNS, ifName)
	if a.plan.IfName != "lo" || !live || err != nil {
		return live, err
	}
	alone := true
	for _, other := range all {
		if other.plan.IfName == "lo" {
			continue
		}
		alone = false
		if live, err := other.isAlive(nil); live || err != nil {
			return live, err
		}
	}
	return alone, nil
}

// unfinished returns why an attachment cannot be expected to be whole, or nil: it is
// being made or removed, or a call that did so was cut short.
func (a *attachment) unfinished() error {
	n := a.entry()
	switch {
	case n == nil || !a.op.c.Recorded.Record.IsUnfinished(n):
		return nil
	case n.Failures > 0:
		return fmt.Errorf("interface %s of network %q could not be removed: %s", n.IfName, n.Network, n.LastError)
	}
	if alive, err := a.op.eng.Store.RuntimeAlive(a.op.c.Recorded.Record); alive || err != nil {
		return Join(fmt.Errorf("interface %s of network %q is being attached or detached: %w", n.IfName, n.Network, outcome.ErrBusy), err)
	}
	return fmt.Errorf("interface %s of network %q: a Setup or Remove was cut short; Recover or Remove removes it", n.IfName, n.Network)
}

// inDoubt reports whether another container may have the attachment's addresses
// by now: an earlier DEL may have released them, or the machine was rebooted. At
// the first DEL of an attachment, they are still reserved.
func (a *attachment) inDoubt() bool {
	if a.progress.attempted {
		return false // added by this call
	}
	n := a.entry()
	return a.op.c.Place.Rebooted || a.op.c.Recorded.Damaged || a.progress.state != record.Added || n == nil || n.Failures > 0
}

// append adds an entry about the attachment to the record, if there is one.
func (a *attachment) append(e record.Entry) error {
	e.IfName = a.plan.IfName
	return a.op.c.Recorded.Note(e)
}

// note notes a value under a key, for this and for later calls.
func (a *attachment) note(key string, value any) error {
	data, err := json.Marshal(value)
	if err == nil {
		err = a.append(record.Entry{Facts: map[string]json.RawMessage{key: data}})
	}
	if err != nil {
		return fmt.Errorf("note %s: %w", key, err)
	}
	a.facts.Set(key, data)
	return nil
}

// error returns an Error that names the network and the container.
func (a *attachment) error(verb string, err error) *outcome.Error {
	return &outcome.Error{Op: verb, Network: a.plan.Network.Config.Name, ContainerID: string(a.op.c.Recorded.ID), IfName: a.plan.IfName, Err: err}
}

// errors turns the error of a verb on the attachment into Errors. A plugin's is
// already an Error, wrapped by package chain; others become one.
func (a *attachment) errors(verb string, err error) error {
	if err == nil {
		return nil
	}
	if all := pluginErrors(err); len(all) > 0 {
		return Join(asErrors(all)...)
	}
	if invalid := (*chain.ResultError)(nil); errors.As(err, &invalid) {
		e := a.error(verb, WithSentinel(invalid.Err))
		e.Plugin = invalid.Plugin
		return e
	}
	return a.error(verb, WithSentinel(err))
}

// pluginErrors returns the Errors that err wraps; after a DEL there can be several.
func pluginErrors(err error) []*outcome.Error {
	var all []*outcome.Error
	switch e := err.(type) {
	case *outcome.Error:
		return []*outcome.Error{e}
	case interface{ Unwrap() error }:
		return pluginErrors(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			all = append(all, pluginErrors(one)...)
		}
	}
	return all
}

// chain returns the chain of the attachment's plugins, for one verb.
func (a *attachment) chain() *chain.Chain {
	c := &chain.Chain{List: a.plan.Network.Config, Path: a.pluginDirs(), CacheDir: a.op.eng.opts.StateDir, OnResult: hooks{a}.noteResult}
	if a.op.c == nil {
		return c // nothing runs
	}
	r := a.runner()
	r.Given.Batch = &thread.Batch{}
	if a.plan.Network.IsLo && r.MakesOnlyLo() {
		c.Uncached, c.OnResult = true, hooks{a}.holdResult
	}
	c.Run = func(ctx context.Context, call chain.Call) (chain.Output, error) {
		out, err := r.Run(ctx, call)
		if call.Verb == "DEL" {
			err = Join(err, a.makeAgain(ctx, a.described().LostWith(call.Plugin)))
		}
		return out, err
	}
	c.OnEnd = func(ctx context.Context, verb string) error {
		if err := r.End(ctx, verb); err != nil || verb != "ADD" {
			return err
		}
		if err := r.Attachment.Durable(); err != nil {
			return a.error(verb, err)
		}
		return nil
	}
	return c
}

// cached returns the attachment in libcni's cache.
func (a *attachment) cached() chain.Cached {
	return chain.Cached{Dir: a.op.eng.opts.StateDir, List: a.plan.Network.Config, Attachment: &a.plan.Attachment}
}

// pluginDirs returns the plugin directories in the order of the attachment's Setup.
func (a *attachment) pluginDirs() []string { return Ordered(a.op.eng.opts.PluginDirs, a.plan.Dirs) }

// runner returns the runner of the attachment's plugins.
func (a *attachment) runner() *runner.Runner {
	shared := a.op.eng.RunnerOf(a.plan.Network)
	if len(a.plan.Dirs) > 0 || a.standsIn {
		own := *shared
		own.Dirs = a.pluginDirs()
		if a.standsIn {
			own.PreferAll = true
		}
		shared = &own
	}
	r := &runner.Runner{
		Runtime: shared, Plugins: &a.plugins, Network: a.plan.Network.Config,
		ContainerID: a.op.c.Recorded.ID, IfName: a.plan.IfName, Container: a.inside(), Given: a.given(), Attachment: hooks{a},
	}
	if a.op.c.Place.Host != nil {
		r.Host = a.op.c.Place.Host.Handle
	}
	if file := a.op.c.Guard.LockFile(); file != nil {
		r.Inherit = []*os.File{file}
	}
	return r
}

// given returns the values that the attachment's plugins and its sweep are lent.
// Processes that they start keep the container's lock, as plugins do.
func (a *attachment) given() contract.Given {
	g := contract.Given{
		Record:  hooks{a},
		Filters: netfilter.Options{Sockets: &sockets, Held: a.op.c.Guard.LockFile(), Siblings: a.Siblings, Records: a.op.eng.Store.Records.Dir()},
	}
	if a.op.c.Place.Host != nil {
		g.Conns = &a.op.c.Place.Host.Conns
	}
	return g
}

// first returns the type of the first plugin, or of flannel's delegate, which may make the
// interface.
func (n *Network) first() string {
	list, _ := conflist.Resolve(n.Config, "")
	return list.Plugins[0].Network.Type
}

// makesInterface reports whether the first plugin makes the interface. Others
// accept an existing one.
func (n *Network) makesInterface() bool { return conflist.Known(n.first()).Makes.IsNew() }

// RefuseInside refuses a call from inside a registered plugin. The call would
// wait for itself if it is for the same container, or for a GC that waits for
// the plugin.
func (eng *Engine) RefuseInside(ctx context.Context) error {
	call := runner.Inside(ctx, eng.Store.Locks.Path())
	if call == nil {
		return nil
	}
	of := ""
	if call.ContainerID != "" {
		of = " of container " + string(call.ContainerID)
	}
	return fmt.Errorf("%w: %q, at %s%s, would wait for itself; have it delegate, or call when it has returned",
		outcome.ErrInsidePlugin, call.Plugin, call.Verb, of)
}

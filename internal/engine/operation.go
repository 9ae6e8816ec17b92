package engine

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/container"
	"github.com/embedcni/cni/internal/health"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/leftovers"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/runner"
	"github.com/embedcni/cni/netns"
)

// operation is one call for a container in progress.
type operation struct {
	eng         *Engine
	c           *container.Container
	attachments attachments // of this call
	removal     removal
	patience    *caller.Patience // of a repair
}

// removal is the state of removing attachments.
type removal struct {
	leaving map[string]bool // interfaces that are being torn down
	// releases are on their way to the disk, where they must be before the record is deleted.
	releases leftovers.Releases
	cached   *attachments // the container's, in libcni's cache; nil if not read
}

// begin validates everything, and finds out where the plugins will run. It must
// be called on the caller's goroutine, whose thread decides that.
func (eng *Engine) begin(c *Call, verb string) (*operation, error) {
	if c.Err != nil {
		return nil, c.Err
	}
	host, err := eng.openHost()
	if err != nil {
		return nil, err
	}
	op := &operation{eng: eng, c: eng.Store.New(c.ID, host)}
	open := func() error { return op.c.OpenPath(c.Path, verb) }
	if c.Makes && verb == "ADD" {
		open = func() error { return op.c.MakeNetNS(c.Path, c.MakesIn) }
	}
	if err := open(); err != nil {
		return nil, Join(err, host.Close())
	}
	op.attachments = op.take(c.Planned)
	for _, a := range op.attachments {
		a.plan.NetNS = op.c.Path
	}
	return op, nil
}

// beginTeardown is begin for a call that learns its work from the record, and so
// must lock the container before it can plan.
func (eng *Engine) beginTeardown(ctx context.Context, id record.ID, how container.Access) (*operation, error) {
	if err := ValidateID(id); err != nil {
		return nil, err
	}
	host, err := eng.openHost()
	if err != nil {
		return nil, err
	}
	return eng.open(ctx, id, host, how)
}

// open locks the container for a removal, by plugins that run in host, which it takes over.
func (eng *Engine) open(ctx context.Context, id record.ID, host *hostns.NetNS, how container.Access) (*operation, error) {
	op := &operation{eng: eng, c: eng.Store.New(id, host)}
	err := eng.RefuseInside(ctx)
	if err == nil {
		err = op.c.LockForTeardown(ctx, how)
	}
	if err != nil {
		return nil, Join(err, host.Close())
	}
	return op, nil
}

// lock waits until no other call for the container is in progress. It refuses a
// call that would wait for itself.
func (op *operation) lock(ctx context.Context, how container.Access) error {
	if err := op.eng.RefuseInside(ctx); err != nil {
		return err
	}
	return op.c.Lock(ctx, how)
}

// outOfReach returns why a container cannot be compared with the kernel; the state is
// health.Compared if it can. The recorded namespaces are open.
func (op *operation) outOfReach() (health.State, error) {
	gone, why := op.c.OutOfReach()
	switch {
	case why == nil:
		return health.Compared, nil
	case gone:
		return health.Gone, why
	}
	return health.Unknown, why
}

// own reports whether this owner has made the attachment, which is on record.
func (a *attachment) own() bool {
	n := a.entry()
	return n != nil && a.op.c.Record.OwnerOf(n) == a.op.eng.opts.Owner
}

// lockedGrace is the time for which a container may be locked and still be
// recovered with the others. Calls that nothing holds up finish within it.
const lockedGrace = 250 * time.Millisecond

// atOnce is the number of containers that are recovered, or asked for CHECK, at the same
// time. They mostly wait: for executables, and for the kernel to delete interfaces.
const atOnce = 16

// end releases everything that the operation holds.
func (op *operation) end() {
	op.endRemoval()
	op.c.Unlock()
	op.c.Close()
}

// endRemoval discards the state of a removal: another one or an ADD may follow.
func (op *operation) endRemoval() {
	_ = op.removal.releases.Wait() // those who needed it have waited, and logged the error
	op.removal = removal{}
}

// log returns a logger for lines about the container.
func (op *operation) log() *slog.Logger { return op.eng.opts.Logger.With("container", op.c.ID) }

// load reads the record. It keeps the legible part of a damaged one, and returns
// the damage. The error is a *RecordError.
func (op *operation) load() (damage, err error) {
	damage, err = op.c.Load()
	return damage, AsRecordError(op.eng.Store.Records, op.c.ID, record.Name(op.c.ID), err)
}

// loadWhole is load for a call that can do nothing with a damaged record.
func (op *operation) loadWhole() error {
	damage, err := op.load()
	return Join(err, damage)
}

// attachment is one network of an operation.
type attachment struct {
	plan     Planned
	op       *operation
	progress progress
	facts    record.Facts     // notes of built-in plugins
	plugins  runner.Plugins   // the plugins that run, or ran
	lost     bool             // the interface was not in the container before its DEL
	claims   leftovers.Claims // addresses that host-local has reserved in this call
	standsIn bool             // built-in plugins answer for executables, see ready
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

// progress is the progress of an attachment's ADD.
type progress struct {
	attempted bool          // this call has begun it
	state     record.State  // on record
	partial   chain.Partial // the result of the last plugin that answered
	noted     []byte        // the result on record, if this call has noted it
	held      []byte        // a result that is noted once the ADD has ended
}

// entry returns the attachment's part of the record, or nil if it has none.
func (a *attachment) entry() *record.Attachment {
	if a.op.c.Record == nil {
		return nil
	}
	return a.op.c.Record.Find(a.plan.IfName)
}

// inside returns the container's namespace if it is open and the attachment's.
func (a *attachment) inside() *netns.Handle { return a.op.c.Inside(a.plan.NetNS) }

// isAlive reports whether an attachment is alive: its namespace exists and has the
// interface. Every namespace has a loopback interface, so lo is alive if an
// attachment of the same Setup is, or without one if the namespace exists.
func (a *attachment) isAlive(all attachments) (bool, error) {
	ifName := ""
	if a.described().MadeInterface() { // an interface that was never made cannot be missing
		ifName = a.plan.IfName
	}
	live, err := a.op.c.Lives(a.plan.NetNS, ifName)
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

// error returns an Error that names the network and the container.
func (a *attachment) error(verb string, err error) *Error {
	e := &Error{Op: verb, Network: a.plan.Network.Config.Name, Err: err}
	e.ContainerID, e.IfName = string(a.op.c.ID), a.plan.IfName
	return e
}

// errors turns the error of a verb on the attachment into Errors. A plugin's is
// already an Error, wrapped by package chain; others become one.
func (a *attachment) errors(verb string, err error) error {
	if err == nil {
		return nil
	}
	if all := pluginErrors(err); len(all) > 0 {
		return Join(all...)
	}
	if invalid := (*chain.ResultError)(nil); errors.As(err, &invalid) {
		e := a.error(verb, WithSentinel(invalid.Err))
		e.Plugin = invalid.Plugin
		return e
	}
	return a.error(verb, WithSentinel(err))
}

// pluginErrors returns the Errors that err wraps; after a DEL there can be several.
func pluginErrors(err error) []error {
	var all []error
	switch e := err.(type) {
	case *Error:
		return []error{e}
	case interface{ Unwrap() error }:
		return pluginErrors(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			all = append(all, pluginErrors(one)...)
		}
	}
	return all
}

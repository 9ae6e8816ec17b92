package cni

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/container"
	"github.com/embedcni/cni/internal/health"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/leftovers"
	"github.com/embedcni/cni/internal/lock"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/runner"
	"github.com/embedcni/cni/netns"
)

// operation is one call for a container in progress.
type operation struct {
	*snapshot
	*container.Container
	attachments attachments // of this call
	removal     removal
	// portWarnings are about ports of the host that the Setup forwards nevertheless.
	portWarnings []*PortError
	ignored      []string         // see Result.Ignored
	patience     *caller.Patience // of a repair
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
func (s *snapshot) begin(ns *Namespace, verb string) (*operation, error) {
	if err := validateID(ns.id); err != nil {
		return nil, err
	}
	op := &operation{snapshot: s}
	var err error
	if op.attachments, err = op.plan(ns, verb); err != nil {
		return nil, err
	}
	host, err := s.Hosts.Open(s.hostNetNS)
	if err != nil {
		return nil, err
	}
	op.Container = s.New(ns.id, host)
	open := func() error { return op.OpenPath(ns.path, verb) }
	if ns.makes && verb == "ADD" {
		open = func() error { return op.MakeNetNS(ns.path, ns.makesIn) }
	}
	if err := open(); err != nil {
		return nil, join(err, host.Close())
	}
	for _, a := range op.attachments {
		a.NetNS = op.Path
	}
	return op, nil
}

// beginTeardown is begin for a call that learns its work from the record, and so
// must lock the container before it can plan.
func (s *snapshot) beginTeardown(ctx context.Context, id record.ID, how container.Access) (*operation, error) {
	if err := validateID(id); err != nil {
		return nil, err
	}
	host, err := s.Hosts.Open(s.hostNetNS)
	if err != nil {
		return nil, err
	}
	return (&operation{snapshot: s}).open(ctx, id, host, how)
}

// open locks the container for a removal, by plugins that run in host, which it takes over.
func (op *operation) open(ctx context.Context, id record.ID, host *hostns.NetNS, how container.Access) (*operation, error) {
	op.Container = op.New(id, host)
	err := op.refuseInside(ctx)
	if err == nil {
		err = op.LockForTeardown(ctx, how)
	}
	if err != nil {
		return nil, join(err, host.Close())
	}
	return op, nil
}

// lock waits until no other call for the container is in progress. It refuses a
// call that would wait for itself.
func (op *operation) lock(ctx context.Context, how container.Access) error {
	if err := op.refuseInside(ctx); err != nil {
		return err
	}
	return op.Lock(ctx, how)
}

// lockBarrier waits until no ADD or DEL is in progress. It refuses a call that
// would wait for itself.
func (s *snapshot) lockBarrier(ctx context.Context) (*lock.Held, error) {
	if err := s.refuseInside(ctx); err != nil {
		return nil, err
	}
	return s.Locks.LockBarrier(ctx)
}

// look looks at the containers of records, which are not locked. With own, it compares
// only this owner's attachments.
func (s *snapshot) look(ctx context.Context, host *hostns.NetNS, found []record.Found, own bool) []*health.Container {
	return s.looking(ctx, host, own).All(ctx, found)
}

func (s *snapshot) looking(ctx context.Context, host *hostns.NetNS, own bool) *health.Look {
	return &health.Look{Records: s.Records, IsLocked: s.Locks.IsLocked, Logger: s.logger, Examine: func(c *health.Container, looks *compare.Looks) error {
		return s.examine(ctx, host, c, own, looks)
	}}
}

// examine compares a container with its record. The error is the reason why it could
// not.
func (s *snapshot) examine(ctx context.Context, host *hostns.NetNS, c *health.Container, own bool, looks *compare.Looks) error {
	rec := c.Found.Record
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case c.Found.Err != nil:
		return recordError(s.Records, rec.ContainerID, c.Found.File, c.Found.Err)
	}
	its, err := host.Dup()
	if err != nil {
		return err
	}
	op := &operation{snapshot: s, Container: s.New(rec.ContainerID, its)}
	defer op.Close()
	op.Record = rec
	all, err := op.enterRecorded(false)
	if err != nil {
		return err
	}
	if own {
		all = slices.DeleteFunc(all, func(a *attachment) bool { return !a.own() })
	}
	if len(all) == 0 {
		c.State = health.NotAttached
		return nil
	}
	if c.State, c.Reason = op.outOfReach(); c.State == health.Compared {
		c.Parts, err = op.compareAll(ctx, looks, all)
	}
	return err
}

// outOfReach returns why a container cannot be compared with the kernel; the state is
// health.Compared if it can. The recorded namespaces are open.
func (op *operation) outOfReach() (health.State, error) {
	gone, why := op.OutOfReach()
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
	return n != nil && a.op.Record.OwnerOf(n) == a.op.owner
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
	op.Unlock()
	op.Close()
}

// endRemoval discards the state of a removal: another one or an ADD may follow.
func (op *operation) endRemoval() {
	_ = op.removal.releases.Wait() // those who needed it have waited, and logged the error
	op.removal = removal{}
}

// log returns a logger for lines about the container.
func (op *operation) log() *slog.Logger { return op.logger.With("container", op.ID) }

// load reads the record. It keeps the legible part of a damaged one, and returns
// the damage. The error is a *RecordError.
func (op *operation) load() (damage, err error) {
	damage, err = op.Load()
	return damage, recordError(op.Records, op.ID, record.Name(op.ID), err)
}

// loadWhole is load for a call that can do nothing with a damaged record.
func (op *operation) loadWhole() error {
	damage, err := op.load()
	return join(err, damage)
}

// attachment is one network of an operation.
type attachment struct {
	chain.Attachment
	op      *operation
	network *Network
	progress
	facts   record.Facts   // notes of built-in plugins
	plugins runner.Plugins // the plugins that run, or ran
	lost    bool           // the interface was not in the container before its DEL

	mapped []wirePort  // by WithCapabilityPortMap, beside ports
	ports  *askedPorts // by WithPorts; nil: none, or no plugin takes them

	metadata  map[string]string // of the caller's, for the record
	ownConfig bool              // the configuration was given with the call
	dirs      []string          // of executables, that come first; see WithPluginDirOrder
	prev      chain.Partial     // of the caller's, see WithPrevResult
	standsIn  bool              // built-in plugins answer for executables, see Network.ready
}

// attachments are some of one container's attachments.
type attachments []*attachment

// names returns the names of their interfaces.
func (all attachments) names() map[string]bool {
	names := make(map[string]bool, len(all))
	for _, a := range all {
		names[a.IfName] = true
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
	if a.op.Record == nil {
		return nil
	}
	return a.op.Record.Find(a.IfName)
}

// inside returns the container's namespace if it is open and the attachment's.
func (a *attachment) inside() *netns.Handle { return a.op.Inside(a.NetNS) }

// isAlive reports whether an attachment is alive: its namespace exists and has the
// interface. Every namespace has a loopback interface, so lo is alive if an
// attachment of the same Setup is, or without one if the namespace exists.
func (a *attachment) isAlive(all attachments) (bool, error) {
	ifName := ""
	if a.described().MadeInterface() { // an interface that was never made cannot be missing
		ifName = a.IfName
	}
	live, err := a.op.Lives(a.NetNS, ifName)
	if a.IfName != "lo" || !live || err != nil {
		return live, err
	}
	alone := true
	for _, other := range all {
		if other.IfName == "lo" {
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
	e := &Error{Op: verb, Network: a.network.config.Name, Err: err}
	e.ContainerID, e.IfName = string(a.op.ID), a.IfName
	return e
}

// errors turns the error of a verb on the attachment into Errors. A plugin's is
// already an Error, wrapped by package chain; others become one.
func (a *attachment) errors(verb string, err error) error {
	if err == nil {
		return nil
	}
	if all := pluginErrors(err); len(all) > 0 {
		return join(all...)
	}
	if invalid := (*chain.ResultError)(nil); errors.As(err, &invalid) {
		e := a.error(verb, withSentinel(invalid.Err))
		e.Plugin = invalid.Plugin
		return e
	}
	return a.error(verb, withSentinel(err))
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

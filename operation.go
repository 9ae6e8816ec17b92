package cni

import (
	"context"
	"errors"

	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/claims"
	"github.com/embedcni/cni/internal/container"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/lock"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/runner"
	"github.com/embedcni/cni/netns"
)

// operation is one call for a container under way.
type operation struct {
	*snapshot
	*container.Container
	attachments []*attachment // that the call is about
	removal     removal
}

// removal is what the removal of attachments has begun or found so far.
type removal struct {
	leaving map[string]bool // interfaces that are being torn down
	entered *record.Pending // the ledger, on its way to the disk before the record goes
	cached  *[]*attachment  // the container's, in libcni's cache; nil if not read
}

// begin validates everything, and finds out where the plugins will run. It must
// be called on the goroutine of the caller, whose thread decides that.
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
	op.Ours = ns.ours
	if err := op.OpenPath(ns.path, verb); err != nil {
		return nil, join(err, host.Close())
	}
	for _, a := range op.attachments {
		a.NetNS = op.Path
	}
	return op, nil
}

// beginTeardown is begin for a call that learns from the record what there is
// to do, and so must have the container locked before it can plan.
func (s *snapshot) beginTeardown(ctx context.Context, id record.ID, how container.Access) (*operation, error) {
	if err := validateID(id); err != nil {
		return nil, err
	}
	host, err := s.Hosts.Open(s.hostNetNS)
	if err != nil {
		return nil, err
	}
	return s.beginTeardownFrom(ctx, id, host, how)
}

// beginTeardownFrom is beginTeardown for plugins that run in host, which it takes
// over.
func (s *snapshot) beginTeardownFrom(ctx context.Context, id record.ID, host *hostns.NetNS, how container.Access) (*operation, error) {
	op := &operation{snapshot: s}
	if err := op.open(ctx, id, host, how); err != nil {
		return nil, err
	}
	return op, nil
}

// open locks the container for a removal. It takes over host.
func (op *operation) open(ctx context.Context, id record.ID, host *hostns.NetNS, how container.Access) error {
	op.Container = op.New(id, host)
	err := op.refuseInside(ctx)
	if err == nil {
		err = op.LockForTeardown(ctx, how)
	}
	if err != nil {
		return join(err, host.Close())
	}
	return nil
}

// lock waits until no other call for the container is under way. It refuses a call
// that would wait for itself.
func (op *operation) lock(ctx context.Context, how container.Access) error {
	if err := op.refuseInside(ctx); err != nil {
		return err
	}
	return op.Lock(ctx, how)
}

// lockBarrier waits until no ADD or DEL is under way. It refuses a call that would wait
// for itself.
func (s *snapshot) lockBarrier(ctx context.Context) (*lock.Held, error) {
	if err := s.refuseInside(ctx); err != nil {
		return nil, err
	}
	return s.LockBarrier(ctx)
}

// end releases all that the operation holds.
func (op *operation) end() {
	op.endRemoval()
	op.Unlock()
	op.runner.Ahead.TakeBack(op.Host.Handle, op.Locks, lock.Key{Name: container.Barrier}, op.logger)
	op.Close()
}

// endRemoval forgets a removal of attachments: others may follow, or an ADD.
func (op *operation) endRemoval() {
	_ = op.removal.entered.Wait() // those who relied on it have waited, and logged the error
	op.removal = removal{}
}

// load reads the record. Of a damaged one it keeps the legible part, and returns the
// damage. The error is a *RecordError.
func (op *operation) load() (damage, err error) {
	damage, err = op.Load()
	return damage, op.recordError(op.ID, record.Name(op.ID), err)
}

// attachment is one network of an operation.
type attachment struct {
	chain.Attachment
	op        *operation
	network   *Network
	attempted bool            // an ADD was begun
	state     record.State    // how far the ADD got, from the record
	partial   chain.Partial   // what a failed ADD got to
	noted     []byte          // the result that the record has, if it was noted here
	part      chain.Part      // which plugins the ADD is for; zero: all
	facts     facts           // what built-in plugins have noted
	plugins   runner.Plugins  // which plugins run, or ran
	lost      bool            // the interface was not in the container before its DEL
	claims    claims.Claims   // what host-local has reserved in this call
	garbage   *claims.Garbage // of a GC: what may be released
}

// inside is the container's namespace if that is open, and the attachment's: the
// path in libcni's cache may be another one.
func (a *attachment) inside() *netns.Handle {
	if a.NetNS != a.op.Path {
		return nil
	}
	return a.op.NetNS
}

// error is an Error that says where: which network of which container.
func (a *attachment) error(verb string, err error) *Error {
	e := &Error{Op: verb, Network: a.network.config.Name, Err: err}
	e.ContainerID, e.IfName = string(a.op.ID), a.IfName
	return e
}

// errors makes Errors of the error of a verb on the attachment. A plugin's is an
// Error already, wrapped by package chain; others become one.
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

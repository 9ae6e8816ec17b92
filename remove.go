package cni

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/embedcni/cni/internal/container"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/spans"
)

func (s *snapshot) remove(ctx context.Context, ns *Namespace) error {
	ctx = context.WithoutCancel(ctx)
	op := &operation{snapshot: s}
	host, err := op.validateRemove(ns)
	if err != nil {
		return fmt.Errorf("remove container %q: %w", ns.id, err)
	}
	if err := op.open(ctx, ns.id, host, container.Access{}); err != nil {
		return fmt.Errorf("remove container %q: %w", ns.id, leftover(ns.id, err))
	}
	defer op.end()
	s.reap(op.Host, false)
	if err := op.recall(ns, true); err != nil {
		return fmt.Errorf("remove container %q: %w", ns.id, leftover(ns.id, err))
	}
	return op.tearDown(ctx, op.attachments)
}

// validateRemove checks the caller's parameters before anything is touched, the lock
// file included, and opens the namespace in which plugins run. A whole record decides
// which attachments the container has; otherwise they are planned here.
func (op *operation) validateRemove(ns *Namespace) (*hostns.NetNS, error) {
	if err := validateID(ns.id); err != nil {
		return nil, err
	}
	rec, err := op.loadRecord(ns.id)
	switch {
	case errors.As(err, new(*RecordError)):
		err = nil // recall returns it
	case rec != nil && err == nil:
		err = op.validateSelected(ns, rec)
	default:
		op.attachments, err = op.plan(ns, "DEL")
	}
	if err != nil {
		return nil, err
	}
	host, err := op.Hosts.Open(op.hostNetNS)
	if err != nil {
		return nil, err
	}
	if _, err := host.Validate(ns.path, "DEL"); err != nil {
		return nil, join(err, host.Close())
	}
	return host, nil
}

// validateSelected refuses a network that is neither on the container's record
// nor loaded.
func (s *snapshot) validateSelected(ns *Namespace, rec *record.Record) error {
	for _, sel := range ns.selected {
		recorded := slices.ContainsFunc(rec.Networks, func(n record.Network) bool { return n.Name == sel.network })
		if _, err := s.find(sel.network); err != nil && !recorded {
			return err
		}
	}
	return nil
}

// tearDown runs the DELs, sweeps what they have left, and makes sure that
// nothing is. Then the record is deleted; else it stays, with the reason, for
// the next try.
func (op *operation) tearDown(ctx context.Context, attachments []*attachment) error {
	ctx = op.share(ctx)
	op.removal.leaving = namesOf(attachments)
	op.syncLedger(attachments)
	if err := op.takeCharge(attachments); err != nil {
		return leftover(op.ID, err)
	}
	var delErr error
	if op.HostGone {
		delErr = op.withoutHost(attachments)
	} else {
		delErr = op.detach(ctx, attachments)
	}
	left, err := op.sweep(ctx, attachments)
	clean := len(left) == 0 && err == nil
	open := delErr
	if clean && delErr != nil && !op.HostGone {
		open = op.withoutUndone(ctx, attachments, delErr)
	}
	switch {
	case clean && (open == nil || op.vouched(attachments, open)):
		if err := op.forget(attachments); err != nil {
			// Nothing of the container is left but its record, as on a disk
			// that has become read-only. The next Recover removes it again.
			op.logger.Error("delete the attachment record", "container", op.ID, "error", err)
		}
		if delErr == nil {
			return nil
		}
		op.logger.Warn("DEL failed, and nothing is left", "container", op.ID, "error", delErr)
		op.uncache(attachments)
		if op.teardownErrors {
			return delErr
		}
		return nil
	default:
		stays := &LeftoverError{ContainerID: string(op.ID), Left: left, Err: join(delErr, err)}
		op.keep(ctx, attachments, stays)
		return stays
	}
}

// uncache has libcni's cache forget attachments that it kept because a DEL failed.
func (op *operation) uncache(attachments []*attachment) {
	for _, a := range attachments {
		if err := a.chain().Forget(&a.Attachment); err != nil {
			op.logger.Warn("forget a removed attachment", "container", op.ID, "network", a.network.config.Name, "error", err)
		}
	}
}

// takeCharge notes which process works on the container from now on, and which
// attachments are to go: should it be killed, the others are not to be taken
// for broken. A disk that is full must not keep a container attached.
func (op *operation) takeCharge(attachments []*attachment) error {
	if op.Record == nil {
		return nil
	}
	self, err := op.Identity()
	if err != nil {
		return err
	}
	life := op.Life()
	for _, a := range attachments {
		if err := a.Append(record.Entry{Runtime: self, Life: life, PIDNS: op.PIDNS, State: record.Deleting}); err != nil {
			op.logger.Warn("note a removal in the record", "container", op.ID, "error", err)
		}
	}
	return nil
}

// detach runs the DELs of all attachments, last first, and returns the errors
// of all.
func (op *operation) detach(ctx context.Context, attachments []*attachment) error {
	var errs []error
	for _, a := range attachments {
		a.restoreDevice()
	}
	for _, a := range slices.Backward(attachments) {
		errs = append(errs, a.del(ctx))
	}
	return join(errs...)
}

func (a *attachment) del(ctx context.Context) (err error) {
	ctx, span := a.op.spans.Network(ctx, "cni.detachNetwork", a.network.config.Name, a.IfName)
	defer func() { spans.End(span, err) }()
	err = a.chain().Del(ctx, &a.Attachment, a.partial)
	return a.withoutNeverRan(a.errors("DEL", err))
}

// useCached gives the plugins what the ADD was given where this call gives
// nothing: the specification wants DEL and CHECK to have the parameters of the
// ADD, and a portmap without its ports deletes nothing.
func (a *attachment) useCached() {
	cached, err := a.chain().Cached(&a.Attachment)
	if err != nil {
		a.op.logger.Warn("cached attachment cannot be read", "container", a.ContainerID,
			"network", a.network.config.Name, "error", err)
		return
	}
	if cached == nil {
		return
	}
	if len(a.Args) == 0 {
		a.Args = cached.Args
	}
	a.CapabilityArgs = merge(cached.CapabilityArgs, a.CapabilityArgs)
	a.ConfigArgs = merge(cached.ConfigArgs, a.ConfigArgs)
}

// withoutHost is detach where the namespace that the plugins ran in is gone, and
// with it all that they had made there: nothing is asked to delete in the
// caller's, where the same names and addresses can be others'. What is on the
// disk is left to the sweep, so an error says which plugins may have more there
// than that knows of.
func (op *operation) withoutHost(attachments []*attachment) error {
	var errs []error
	for _, a := range attachments {
		for _, p := range a.network.config.Plugins {
			for _, typ := range []string{p.Network.Type, p.Network.IPAM.Type} {
				if k := known.Of(typ); typ == "" || k.IPAM || k.Swept && !a.described().IsCallers(typ) {
					continue
				}
				e := a.error("DEL", ErrHostNetNS)
				e.Plugin, e.Msg = typ, "not asked: the host network namespace that it ran in is gone; CleanUp forgets the attachment"
				errs = append(errs, e)
			}
		}
	}
	op.uncache(attachments)
	return join(errs...)
}

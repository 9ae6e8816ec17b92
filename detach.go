package cni

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/lock"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/spans"
)

// teardownWait bounds how long Remove waits for another call on the same
// container. It is longer than a plugin's default time for ADD, so that a
// Remove behind a Setup that hangs gets its turn when that is given up.
const teardownWait = 5 * time.Minute

func (s *snapshot) remove(ctx context.Context, ns *Namespace) error {
	ctx = context.WithoutCancel(ctx)
	host, err := s.validateRemove(ns)
	if err != nil {
		return fmt.Errorf("remove container %q: %w", ns.id, err)
	}
	op, err := s.beginTeardownFrom(ctx, ns.id, host)
	if err != nil {
		return fmt.Errorf("remove container %q: %w", ns.id, leftover(ns.id, err))
	}
	defer op.end()
	s.reap(op.host, false)
	op.asked = true
	if err := op.recall(ns); err != nil {
		return fmt.Errorf("remove container %q: %w", ns.id, leftover(ns.id, err))
	}
	return op.tearDown(ctx, op.attachments)
}

// validateRemove checks what the caller passes before anything is touched, the
// lock file included. Where there is a record that decides, and the loaded
// networks do not matter. It returns where the plugins will run.
func (s *snapshot) validateRemove(ns *Namespace) (*hostns.NetNS, error) {
	if err := validateID(ns.id); err != nil {
		return nil, err
	}
	rec, err := s.loadRecord(ns.id)
	switch {
	case errors.As(err, new(*RecordError)):
		err = nil // recall says why it is not known
	case rec != nil && err == nil:
		err = s.validateSelected(ns, rec)
	default:
		err = (&operation{snapshot: s, verb: "DEL", id: ns.id}).plan(ns)
	}
	if err != nil {
		return nil, err
	}
	host, err := s.hosts.Open(s.hostNetNS)
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

// beginTeardown is begin for a call that learns from the record what there is
// to do, and so must have the container locked before it can plan.
func (s *snapshot) beginTeardown(ctx context.Context, id record.ID) (*operation, error) {
	if err := validateID(id); err != nil {
		return nil, err
	}
	host, err := s.hosts.Open(s.hostNetNS)
	if err != nil {
		return nil, err
	}
	return s.beginTeardownFrom(ctx, id, host)
}

// beginTeardownFrom is beginTeardown where it is known already where the plugins
// will run.
func (s *snapshot) beginTeardownFrom(ctx context.Context, id record.ID, host *hostns.NetNS) (*operation, error) {
	op := &operation{snapshot: s, verb: "DEL", id: id, host: host}
	op.inGC = ctx.Value(inGC{}) != nil
	if err := op.lockForTeardown(ctx); err != nil {
		return nil, join(err, host.Close())
	}
	return op, nil
}

// lockForTeardown is lockEnding, but goes on when the lock file cannot be used: a
// full or read-only disk must not keep a container attached. Other processes
// are not kept out then.
func (op *operation) lockForTeardown(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, teardownWait)
	defer cancel()
	err := op.lockEnding(ctx)
	if !errors.Is(err, lock.ErrUnavailable) {
		return err
	}
	op.logger.Warn("removing without a lock between processes", "container", op.id, "error", err)
	op.held, err = op.locks.LockLocal(ctx, op.keys())
	return err
}

// tearDown runs the DELs, sweeps what they have left, and makes sure that
// nothing is. Then the record is deleted; else it stays, with the reason, for
// the next try.
func (op *operation) tearDown(ctx context.Context, attachments []*attachment) error {
	ctx = op.share(ctx)
	op.leaving = namesOf(attachments)
	op.syncLedger(attachments)
	if err := op.takeCharge(attachments); err != nil {
		return leftover(op.id, err)
	}
	var delErr error
	if op.hostGone {
		delErr = op.withoutHost(attachments)
	} else {
		delErr = op.detach(ctx, attachments)
	}
	left, err := op.sweep(ctx, attachments)
	clean := len(left) == 0 && err == nil
	open := delErr
	if clean && delErr != nil && !op.hostGone {
		open = op.withoutUndone(ctx, attachments, delErr)
	}
	switch {
	case clean && (open == nil || op.vouched(attachments, open)):
		if err := op.forget(attachments); err != nil {
			// Nothing of the container is left but its record, as on a disk
			// that has become read-only. The next Recover removes it again.
			op.logger.Error("delete the attachment record", "container", op.id, "error", err)
		}
		if delErr == nil {
			return nil
		}
		op.logger.Warn("DEL failed, and nothing is left", "container", op.id, "error", delErr)
		op.uncache(attachments)
		if op.teardownErrors {
			return delErr
		}
		return nil
	default:
		stays := &LeftoverError{ContainerID: string(op.id), Left: left, Err: join(delErr, err)}
		op.keep(ctx, attachments, stays)
		return stays
	}
}

// uncache has libcni's cache forget attachments that it kept because a DEL failed.
func (op *operation) uncache(attachments []*attachment) {
	for _, a := range attachments {
		if err := a.chain().Forget(&a.Attachment); err != nil {
			op.logger.Warn("forget a removed attachment", "container", op.id, "network", a.network.config.Name, "error", err)
		}
	}
}

// takeCharge notes which process works on the container from now on, and which
// attachments are to go: should it be killed, the others are not to be taken
// for broken. A disk that is full must not keep a container attached.
func (op *operation) takeCharge(attachments []*attachment) error {
	if op.rec == nil {
		return nil
	}
	self, err := op.identity()
	if err != nil {
		return err
	}
	life := op.life()
	for _, a := range attachments {
		if err := a.Append(record.Entry{Runtime: self, Life: life, PIDNS: op.pidNS, State: record.Deleting}); err != nil {
			op.logger.Warn("note a removal in the record", "container", op.id, "error", err)
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

func (s *snapshot) check(ctx context.Context, ns *Namespace) error {
	op, err := s.begin(ns, "CHECK")
	if err != nil {
		return fmt.Errorf("check container %q: %w", ns.id, err)
	}
	defer op.end()
	s.reap(op.host, false)
	if err := op.lock(ctx); err != nil {
		return fmt.Errorf("check container %q: %w", ns.id, err)
	}
	rec, err := op.loadRecord(ns.id)
	if err != nil {
		return fmt.Errorf("check container %q: %w", ns.id, err)
	}
	if rec != nil && rec.Boot == op.boot {
		if err := op.enterHost(rec); err != nil {
			return fmt.Errorf("check container %q: %w", ns.id, err)
		}
		if op.hostGone {
			return fmt.Errorf("check container %q: the host network namespace %s is gone: %w", ns.id, described(rec.Host, rec.HostPath), ErrHostNetNS)
		}
	}
	for _, a := range op.attachments {
		if err := a.check(ctx, rec); err != nil {
			return err
		}
	}
	return nil
}

// check runs the CHECK of one network, as the record has it, if there is one.
func (a *attachment) check(ctx context.Context, rec *record.Record) (err error) {
	ctx, span := a.op.spans.Network(ctx, "cni.checkNetwork", a.network.config.Name, a.IfName)
	defer func() { spans.End(span, err) }()
	if rec != nil {
		err = a.useRecorded(rec)
	} else {
		a.useCached()
	}
	if err == nil {
		err = a.chain().Check(ctx, &a.Attachment, a.partial)
	}
	return a.errors("CHECK", err)
}

// useRecorded gives CHECK the configuration, the parameters and the result of
// the ADD.
func (a *attachment) useRecorded(rec *record.Record) error {
	n := rec.Find(a.IfName)
	if n == nil || n.Name != a.network.config.Name || !n.Answered() {
		return fmt.Errorf("%s of network %q: %w", a.IfName, a.network.config.Name, ErrNotAttached)
	}
	recorded, err := a.op.fromRecord(&record.Record{ContainerID: rec.ContainerID, PluginID: rec.PluginID, Networks: []record.Network{*n}})
	if err != nil {
		return err
	}
	a.facts.set(n.Facts)
	a.plugins.Reset(n.Plugins, n.NeverRan)
	netNS := a.NetNS
	a.network, a.Attachment, a.partial = recorded[0].network, recorded[0].Attachment, recorded[0].partial
	a.NetNS = netNS
	return nil
}

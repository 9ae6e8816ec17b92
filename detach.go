package cni

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/embedcni/cni/internal/lock"
)

// teardownWait bounds how long Remove waits for another call on the same
// container. It is longer than a plugin's default time for ADD, so that a
// Remove behind a Setup that hangs gets its turn when that is given up.
const teardownWait = 5 * time.Minute

func (s *snapshot) remove(ctx context.Context, ns *Namespace) error {
	ctx = context.WithoutCancel(ctx)
	op, err := s.begin(ns, "DEL")
	if err != nil {
		return fmt.Errorf("remove container %q: %w", ns.id, err)
	}
	defer op.end()
	if err := op.lockForTeardown(ctx); err != nil {
		return fmt.Errorf("remove container %q: %w", ns.id, err)
	}
	for _, a := range op.attachments {
		a.useCached()
	}
	return op.detach(ctx, op.attachments)
}

// lockForTeardown is lock, but goes on when the lock file cannot be used: a
// full or read-only disk must not keep a container attached. Other processes
// are not kept out then.
func (op *operation) lockForTeardown(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, teardownWait)
	defer cancel()
	err := op.lock(ctx)
	if !errors.Is(err, lock.ErrUnavailable) {
		return err
	}
	op.logger.Warn("removing without a lock between processes", "container", op.id, "error", err)
	op.held, err = op.locks.LockLocal(ctx, op.containerKey())
	return err
}

// detach runs the DELs of all attachments, last first, and returns the errors
// of all.
func (op *operation) detach(ctx context.Context, attachments []*attachment) error {
	var errs []error
	for _, a := range slices.Backward(attachments) {
		err := a.chain().Del(ctx, &a.Attachment, a.partial)
		errs = append(errs, a.errors("DEL", err))
	}
	return join(errs...)
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
	if err := op.lock(ctx); err != nil {
		return fmt.Errorf("check container %q: %w", ns.id, err)
	}
	for _, a := range op.attachments {
		a.useCached()
		if err := a.chain().Check(ctx, &a.Attachment); err != nil {
			return a.errors("CHECK", err)
		}
	}
	return nil
}

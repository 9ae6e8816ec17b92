package cni

import (
	"context"
	"fmt"
	"slices"

	"github.com/embedcni/cni/internal/record"
)

// going are the attachments that Recover is to remove: all, if the container's
// namespace is gone or it was nobody's container yet; else those that no caller
// counts on.
func (op *operation) going() ([]*attachment, error) {
	if op.damaged {
		// Its log says neither boot nor path. Where namespaces are kept by mounts,
		// a mount that is gone tells; elsewhere nothing does.
		if op.attachedBefore() && (!op.gone() || !op.kept.mounts(op.id)) {
			return nil, nil
		}
		return op.attachments, nil
	}
	if op.gone() {
		return op.attachments, nil
	}
	if op.rec.Warm {
		return op.attachments, nil
	}
	return op.unfinished(), nil
}

// attachedBefore reports whether the log of a damaged record says that the
// container was attached, and that no Remove has begun.
func (op *operation) attachedBefore() bool {
	return op.rec != nil && slices.ContainsFunc(op.rec.Networks, func(n record.Network) bool {
		return n.State == record.Added && n.Failures == 0
	})
}

// unfinished are the attachments that a Remove has begun with, and those of a
// Setup that has not got to its end: its caller never heard of any of them.
func (op *operation) unfinished() []*attachment {
	half := map[int]bool{}
	for _, n := range op.rec.Networks {
		if n.State == record.Planned {
			half[n.Call] = true
		}
	}
	var all []*attachment
	for _, a := range op.attachments {
		n := op.rec.Find(a.IfName)
		if n.State == record.Deleting || n.Failures > 0 || half[n.Call] {
			all = append(all, a)
		}
	}
	return all
}

// doubt is why the attachments are not known to be healthy, nil if they are.
func (op *operation) doubt(ctx context.Context, attachments []*attachment) error {
	if op.damaged {
		return fmt.Errorf("it may live, and its record is damaged, so that it cannot be checked; call Remove if it is gone: %w", record.ErrBad)
	}
	if op.hostGone {
		return fmt.Errorf("the namespace %s that its plugins ran in is gone: %w", described(op.rec.Host, op.rec.HostPath), ErrHostNetNS)
	}
	if op.abandoned() {
		return fmt.Errorf("%s no longer leads to its namespace, which is kept at %s: %w", op.rec.NetNS.Path, op.path, ErrInvalidNetNS)
	}
	var errs []error
	for _, a := range attachments {
		live, err := a.lives(attachments)
		if err == nil && !live {
			err = fmt.Errorf("interface %s of network %q is gone: %w", a.IfName, a.network.config.Name, ErrNotAttached)
		}
		if err == nil {
			if c := a.chain(); c.CanCheck() {
				err = a.errors("CHECK", c.Check(ctx, &a.Attachment, a.partial))
			}
		}
		errs = append(errs, err)
	}
	return join(errs...)
}

// adopt keeps the container, and returns why it is not known to be healthy.
func (op *operation) adopt(ctx context.Context, going []*attachment) error {
	staying := slices.DeleteFunc(slices.Clone(op.attachments), func(a *attachment) bool { return slices.Contains(going, a) })
	doubt := op.doubt(ctx, staying)
	if !op.damaged && (op.rec.LetGo == nil || op.reached == byPath) {
		// Where mounts are not allowed, the descriptor that kept it was the last
		// process's.
		doubt = join(doubt, op.pin(op.rec.NetNS))
	}
	if doubt != nil {
		op.logger.Warn("a container lives and is kept, but is not known to be healthy", "container", op.id, "reason", doubt)
	}
	return doubt
}

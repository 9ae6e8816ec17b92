package cni

import (
	"context"
	"fmt"
	"slices"

	"github.com/embedcni/cni/internal/container"
	"github.com/embedcni/cni/internal/record"
)

// going are the attachments that Recover is to remove: all, if the container's
// namespace is gone or it was nobody's container yet; else those that no caller
// counts on.
func (op *operation) going() ([]*attachment, error) {
	if op.Damaged {
		// Its log says neither boot nor path. Where namespaces are kept by mounts,
		// a mount that is gone tells; elsewhere nothing does.
		if op.attachedBefore() && (!op.Gone() || !op.Pins.WasMounted(op.ID)) {
			return nil, nil
		}
		return op.attachments, nil
	}
	if op.Gone() {
		return op.attachments, nil
	}
	if op.Record.Warm {
		return op.attachments, nil
	}
	return op.unfinished(), nil
}

// attachedBefore reports whether the log of a damaged record says that the
// container was attached, and that no Remove has begun.
func (op *operation) attachedBefore() bool {
	return op.Record != nil && slices.ContainsFunc(op.Record.Networks, func(n record.Network) bool {
		return n.State == record.Added && n.Failures == 0
	})
}

// unfinished are the attachments that a Remove has begun with, and those of a
// Setup that has not got to its end: its caller never heard of any of them.
func (op *operation) unfinished() []*attachment {
	half := map[int]bool{}
	for _, n := range op.Record.Networks {
		if n.State == record.Planned {
			half[n.Call] = true
		}
	}
	var all []*attachment
	for _, a := range op.attachments {
		n := op.Record.Find(a.IfName)
		if n.State == record.Deleting || n.Failures > 0 || half[n.Call] {
			all = append(all, a)
		}
	}
	return all
}

// doubt is why the attachments are not known to be healthy, nil if they are.
func (op *operation) doubt(ctx context.Context, attachments []*attachment) error {
	if op.Damaged {
		return fmt.Errorf("it may live, and its record is damaged, so that it cannot be checked; call Remove if it is gone: %w", record.ErrBad)
	}
	if op.HostGone {
		return fmt.Errorf("the namespace %s that its plugins ran in is gone: %w", op.RecordedHost(), ErrHostNetNS)
	}
	if op.IsAbandoned() {
		return fmt.Errorf("%s no longer leads to its namespace, which is kept at %s: %w", op.Record.NetNS.Path, op.Path, ErrInvalidNetNS)
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
	if !op.Damaged && (op.Record.LetGo == nil || op.Reached == container.ByPath) {
		// Where mounts are not allowed, the descriptor that kept it was the last
		// process's.
		doubt = join(doubt, op.Pin())
	}
	if doubt != nil {
		op.logger.Warn("a container lives and is kept, but is not known to be healthy", "container", op.ID, "reason", doubt)
	}
	return doubt
}

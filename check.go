package cni

import (
	"context"
	"errors"
	"fmt"

	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/container"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/spans"
)

// Check asks the plugins of the loaded networks, or of those selected with
// WithNetwork, whether the attachment is as Setup left it, with the configuration and
// the parameters of Setup. It stops at the first error, and returns ErrNotAttached if
// there was no Setup, whatever the path. A configuration older than 0.4.0 has no CHECK and returns an
// error that says so; one with disableCheck is skipped.
func (r *Runtime) Check(ctx context.Context, id string, path string, opts ...NamespaceOpts) (err error) {
	s := r.current.Load()
	ctx, span := spans.Call(ctx, "cni.Check", id, path)
	defer func() { endCall(span, err) }()
	if err := r.ready(s); err != nil {
		return err
	}
	ns, err := newNamespace(id, path, opts...)
	if err != nil {
		return fmt.Errorf("check container %q: %w", id, err)
	}
	return s.check(ctx, ns)
}

func (s *snapshot) check(ctx context.Context, ns *Namespace) error {
	op, err := s.begin(ns, "CHECK")
	if errors.Is(err, ErrInvalidNetNS) && !s.isKnown(ns.id) {
		err = fmt.Errorf("%w; and it is %w", err, ErrNotAttached)
	}
	if err != nil {
		return fmt.Errorf("check container %q: %w", ns.id, err)
	}
	defer op.end()
	s.reap(op.Host, false)
	if err := op.lock(ctx, container.Access{Waiting: container.Looking}); err != nil {
		return fmt.Errorf("check container %q: %w", ns.id, err)
	}
	damage, err := op.load()
	if err = join(err, damage); err != nil {
		return fmt.Errorf("check container %q: %w", ns.id, err)
	}
	if rec := op.Record; rec != nil && rec.Boot == op.Boot {
		if err := op.EnterHost(false); err != nil {
			return fmt.Errorf("check container %q: %w", ns.id, err)
		}
		if op.HostGone {
			return fmt.Errorf("check container %q: the host network namespace %s is gone: %w", ns.id, op.RecordedHost(), ErrHostNetNS)
		}
	}
	for _, a := range op.attachments {
		if err := a.check(ctx); err != nil {
			return err
		}
	}
	return nil
}

// isKnown reports whether a container may be attached: it is on record, or in libcni's
// cache, or either cannot be read.
func (s *snapshot) isKnown(id record.ID) bool {
	rec, err := s.Records.Load(id)
	if rec != nil || err != nil {
		return true
	}
	cached, err := chain.AllCached(s.stateDir, string(id))
	return len(cached) > 0 || err != nil
}

// check runs the CHECK of one network, as recorded, if it has one.
func (a *attachment) check(ctx context.Context) (err error) {
	ctx, span := spans.Network(ctx, "cni.checkNetwork", a.network.config.Name, a.IfName)
	defer func() { spans.End(span, err) }()
	if a.op.Record != nil {
		a, err = a.recorded()
	} else {
		a.useCached()
	}
	if err == nil {
		err = a.chain().Check(ctx, &a.Attachment, a.partial)
	}
	return a.errors("CHECK", err)
}

// recorded returns the attachment with the configuration, the parameters and the
// result of its ADD; with an error it is the attachment itself.
func (a *attachment) recorded() (*attachment, error) {
	n := a.entry()
	if n == nil || n.Network != a.network.config.Name || !n.Answered() {
		return a, fmt.Errorf("%s of network %q: %w", a.IfName, a.network.config.Name, ErrNotAttached)
	}
	recorded, err := a.op.fromEntry(n)
	if err != nil {
		return a, err
	}
	recorded.NetNS = a.NetNS
	return recorded, nil
}

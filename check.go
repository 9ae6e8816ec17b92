package cni

import (
	"context"
	"fmt"

	"github.com/embedcni/cni/internal/container"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/spans"
)

func (s *snapshot) check(ctx context.Context, ns *Namespace) error {
	op, err := s.begin(ns, "CHECK")
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

// check runs the CHECK of one network, as recorded, if it has one.
func (a *attachment) check(ctx context.Context) (err error) {
	ctx, span := spans.Network(ctx, "cni.checkNetwork", a.network.config.Name, a.IfName)
	defer func() { spans.End(span, err) }()
	if rec := a.op.Record; rec != nil {
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
	if n == nil || n.Network != a.network.config.Name || !n.Answered() {
		return fmt.Errorf("%s of network %q: %w", a.IfName, a.network.config.Name, ErrNotAttached)
	}
	recorded, err := a.op.fromRecord(&record.Record{ContainerID: rec.ContainerID, PluginID: rec.PluginID, Attachments: []record.Attachment{*n}})
	if err != nil {
		return err
	}
	a.facts.Reset(n.Facts)
	a.plugins.Reset(n.Plugins, n.NeverRan)
	netNS := a.NetNS
	a.network, a.Attachment, a.partial = recorded[0].network, recorded[0].Attachment, recorded[0].partial
	a.NetNS = netNS
	return nil
}

package runner

import (
	"context"
	"time"

	"github.com/embedcni/cni/internal/kernel/thread"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/internal/run/invoke"
)

// VerbRepair stands for the verb in the failures and events of a repair. The
// specification has no such verb.
const VerbRepair = "REPAIR"

// Fix adds a missing part of the attachment, which a comparison has found, within the
// time of a plugin for a CHECK. With a batch, changes of packet filters are made when
// it is flushed.
func (r *Runner) Fix(ctx context.Context, d contract.Difference, b *thread.Batch) error {
	ctx, cancel := r.Runtime.Bound(ctx, "CHECK")
	defer cancel()
	lender := *r
	lender.Given.Batch = b
	err := thread.Try(func() error { return d.Fix(lender.Lend(ctx, d.Plugin)) })
	return r.failed(failure(chain.Call{Verb: VerbRepair, Plugin: d.Plugin}, BuiltIn, invoke.Output{}, stopped(ctx, err)))
}

// ReportRepair reports the repair of the part of one plugin to the log and the
// observer.
func (r *Runner) ReportRepair(ctx context.Context, typ string, took time.Duration, err error) {
	r.report(ctx, "plugin call", r.event(VerbRepair, typ, BuiltIn, took, err), invoke.Output{})
}

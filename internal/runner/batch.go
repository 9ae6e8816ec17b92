package runner

import (
	"context"
	"errors"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/batch"
)

// End applies the batched changes at the end of a chain.
//
// Built-in plugins defer changes that make the kernel wait, so that they can be
// applied together. They are applied before an executable or a registered plugin
// runs, which may depend on them, and at the end of the chain. A failed ADD
// drops them: they are additions, which the DEL that follows would remove again.
// A DEL always applies them.
func (r *Runner) End(ctx context.Context, verb string) error {
	return r.failed(r.flush(ctx, r.Given.Batch, verb))
}

// flush applies the changes of a batch, within the time of one plugin.
func (r *Runner) flush(ctx context.Context, b *batch.Batch, verb string) *Failure {
	if b == nil || b.Empty() {
		return nil
	}
	ctx, cancel := r.Bound(ctx, verb)
	defer cancel()
	err := stopped(ctx, b.Flush(ctx))
	if err == nil {
		return nil
	}
	flush := &FlushError{err}
	f := &Failure{Verb: verb, Kind: BuiltIn, Msg: flush.Error(), Err: flush}
	if coded := (*types.Error)(nil); errors.As(err, &coded) {
		f.Code = coded.Code
	}
	return f
}

// FlushError is the error of deferred changes of built-in plugins.
type FlushError struct{ Err error }

func (f *FlushError) Error() string {
	return "apply batched changes: " + f.Err.Error()
}

// Unwrap returns the cause.
func (f *FlushError) Unwrap() error { return f.Err }

package runner

import (
	"context"
	"errors"
	"time"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/thread"
	"github.com/embedcni/cni/internal/run/invoke"
)

// End applies the batched changes at the end of a chain.
//
// Built-in plugins defer changes that make the kernel wait, so that they can be
// applied together. They are applied before an executable or a registered plugin
// runs, which may depend on them, and at the end of the chain. A failed ADD
// drops them: they are additions, which the DEL that follows would remove again.
// A DEL always applies them.
func (r *Runner) End(ctx context.Context, verb string) error {
	return r.flush(ctx, r.Given.Batch, verb)
}

// flush applies the changes of a batch, within the time of one plugin. It reports each
// failure as that of the plugin that deferred the changes: its own call has ended, and
// was reported as a success. The error wraps one of [Attachment].Fail for each.
func (r *Runner) flush(ctx context.Context, b *thread.Batch, verb string) error {
	if b == nil || b.Empty() {
		return nil
	}
	bound, cancel := r.Runtime.Bound(ctx, verb)
	defer cancel()
	begun := time.Now()
	var failed thread.Failures
	errors.As(b.Flush(bound), &failed)
	var errs []error
	for _, one := range failed {
		f := Failure{Verb: verb, Plugin: one.Plugin, Kind: BuiltIn, Err: &FlushError{stopped(bound, one.Err)}}
		if !errors.As(f.Err, new(*stoppedError)) {
			f.say()
		}
		err := r.Attachment.Fail(f)
		errs = append(errs, err)
		r.Runtime.report(ctx, "batched changes failed", r.event(verb, one.Plugin, BuiltIn, time.Since(begun), err), invoke.Output{})
	}
	return joined.Errors(errs...)
}

// FlushError is the error of deferred changes of built-in plugins.
type FlushError struct{ Err error }

func (f *FlushError) Error() string {
	return "apply batched changes: " + f.Err.Error()
}

// Unwrap returns the cause.
func (f *FlushError) Unwrap() error { return f.Err }

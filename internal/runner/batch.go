package runner

import (
	"context"
	"errors"
	"time"

	"github.com/embedcni/cni/internal/batch"
	"github.com/embedcni/cni/internal/invoke"
)

// End applies the batched changes at the end of a chain.
//
// Built-in plugins defer changes that make the kernel wait, so that they can be
// applied together. They are applied before an executable or a registered plugin
// runs, which may depend on them, and at the end of the chain. A failed ADD
// drops them: they are additions, which the DEL that follows would remove again.
// A DEL always applies them.
func (r *Runner) End(ctx context.Context, verb string) error {
	return r.flush(ctx, r.Given.Batch, verb).err
}

// flushed is the outcome of applying a batch.
type flushed struct {
	err  error // wraps one of [Attachment].Fail for each plugin that failed
	code uint  // of the first
}

// flush applies the changes of a batch, within the time of one plugin. It reports each
// failure as that of the plugin that deferred the changes: its own call has ended, and
// was reported as a success.
func (r *Runner) flush(ctx context.Context, b *batch.Batch, verb string) (f flushed) {
	if b == nil || b.Empty() {
		return f
	}
	bound, cancel := r.Bound(ctx, verb)
	defer cancel()
	begun := time.Now()
	var failed batch.Failures
	errors.As(b.Flush(bound), &failed)
	var errs []error
	for _, one := range failed {
		said := flushFailure(verb, one.Plugin, stopped(bound, one.Err))
		err := r.Fail(said)
		if errs = append(errs, err); f.code == 0 {
			f.code = said.Code
		}
		r.report(ctx, "batched changes failed", r.event(verb, one.Plugin, BuiltIn, time.Since(begun), err), invoke.Output{})
	}
	f.err = errors.Join(errs...)
	return f
}

// flushFailure returns the failure of batched changes, as that of a call of the plugin.
func flushFailure(verb, plugin string, err error) Failure {
	f := Failure{Verb: verb, Plugin: plugin, Kind: BuiltIn, Err: &FlushError{err}}
	if !errors.As(err, new(*stoppedError)) {
		f.say()
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

package cni

import (
	"context"
	"errors"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/batch"
	"github.com/embedcni/cni/internal/caller"
)

// batched is the context of one ADD or DEL of the attachment: what makes the
// kernel wait is put off by the plugins built in, and done together.
//
// It is done before anything runs that may count on it, an executable or a
// plugin of the caller's, and at the end of the chain, by Chain.OnEnd. An ADD
// that fails on the way never does the rest: it is additions, which the DEL that
// follows would only take away again. A DEL always does it.
func batched(ctx context.Context) context.Context { return batch.With(ctx, &batch.Batch{}) }

// flushBefore flushes for a plugin that is not built in.
func (a *attachment) flushBefore(ctx context.Context, verb string, p provider) error {
	if p.kind == PluginBuiltIn {
		return nil
	}
	return a.flushBatch(ctx, verb)
}

// flushBatch does what the plugins built in have put off, within the time of one
// plugin. An error of it is an *Error.
func (a *attachment) flushBatch(ctx context.Context, verb string) error {
	b := batch.From(ctx)
	if b == nil || b.Empty() {
		return nil
	}
	ctx, cancel := a.op.bound(ctx, verb)
	defer cancel()
	err := b.Flush(caller.With(ctx, a))
	if err == nil {
		return nil
	}
	if ended := ctx.Err(); ended != nil && errors.Is(err, ended) {
		err = &stoppedError{err, context.Cause(ctx)}
	}
	flush := &flushError{err}
	e := a.error(verb, withSentinel(flush))
	e.Msg, e.PluginKind = flush.Error(), PluginBuiltIn
	if coded := (*types.Error)(nil); errors.As(err, &coded) {
		e.Code = coded.Code
	}
	return e
}

// flushError is what the plugins built in have put off and could not do.
type flushError struct{ err error }

func (f *flushError) Error() string {
	return "changes that the plugins built in make together, at the end: " + f.err.Error()
}

func (f *flushError) Unwrap() error { return f.err }

// types are those of the plugins of the chain.
func (a *attachment) types() []string {
	var all []string
	for _, p := range a.network.config.Plugins {
		all = append(all, p.Network.Type)
	}
	return all
}

// failedTypes are the plugins whose work an Error says may not be done. What is
// put off can be that of any one in the chain.
func (op *operation) failedTypes(attachments []*attachment, e *Error) []string {
	if errors.As(e.Err, new(*mendError)) {
		return []string{""} // the sweep does not cover attachments that stay
	}
	if f := (*flushError)(nil); !errors.As(e.Err, &f) {
		return []string{e.Plugin}
	}
	i := slices.IndexFunc(attachments, func(a *attachment) bool {
		return a.network.config.Name == e.Network && a.IfName == e.IfName
	})
	if i < 0 {
		return []string{""} // nobody's that is known
	}
	return attachments[i].types()
}

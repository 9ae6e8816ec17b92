package cni

import (
	"context"
	"fmt"

	"github.com/embedcni/cni/internal/durable"
	"github.com/embedcni/cni/internal/known"
)

// The record is to survive a power cut before anything does that it is about.
// What the kernel holds does not survive one, so while plugins built in make
// interfaces and rules, which takes as long, the record may be on its way to the
// disk. Whatever may write files waits for it: executables, plugins of the
// caller's, host-local, libcni's cache, and with it the end of every ADD.
//
// A container that was made ahead of time is on record as that, durably, until
// its own record is. What its end leaves on the disk is known from there.

// early reports whether the first plugin can start before the record is durable.
func (op *operation) early() bool {
	for _, a := range op.attachments {
		first, _, _ := a.kinds.get(a.network.config.Plugins[0].Network.Type)
		if op.as == "" && !onlyKernel(first.Type, first.found) {
			return false
		}
	}
	return true
}

// onlyKernel reports whether all that a plugin makes is lost with the power.
func onlyKernel(typ string, p provider) bool {
	return p.kind == PluginBuiltIn && known.Of(typ).KernelOnly
}

// awaitRecord waits for the record before a plugin is run that may write files,
// or has it wait: host-local has something to do before it writes.
func (op *operation) awaitRecord(ctx context.Context, verb, typ string, p provider) (context.Context, error) {
	switch {
	case verb != "ADD" || op.pending == nil || onlyKernel(typ, p):
		return ctx, nil
	case p.kind == PluginBuiltIn && typ == known.HostLocal:
		return durable.With(ctx, op.durable), nil
	}
	return ctx, op.durable()
}

// durable waits until the record survives a power cut.
func (op *operation) durable() error {
	if err := op.pending.Wait(); err != nil {
		return fmt.Errorf("write the attachment record to the disk: %w", err)
	}
	return nil
}

// endChain is the end of a chain, before libcni writes to its cache.
func (a *attachment) endChain(ctx context.Context, verb string) error {
	if err := a.flushBatch(ctx, verb); err != nil || verb != "ADD" || a.op.as != "" {
		return err
	}
	if err := a.op.durable(); err != nil {
		return a.error(verb, err)
	}
	return nil
}

package cni

import (
	"context"
	"fmt"

	"github.com/embedcni/cni/internal/durable"
)

// The record is to survive a power cut before anything does that it is about.
// What the kernel holds does not survive one, so while plugins built in make
// interfaces and rules, which takes as long, the record may be on its way to the
// disk. Whatever may write files waits for it: executables, plugins of the
// caller's, host-local, libcni's cache, and with it the end of every ADD.
//
// A container that was made ahead of time is on record as that, durably, until
// its own record is. What its end leaves on the disk is known from there.

// early tells whether that is worth it: nobody waits at once.
func (op *operation) early() bool {
	for _, a := range op.attachments {
		if op.as == "" && !op.onlyKernel(a.network.config.Plugins[0].Network.Type) {
			return false
		}
	}
	return true
}

// onlyKernel tells whether all that a plugin makes is lost with the power.
func (s *snapshot) onlyKernel(typ string) bool {
	p, err := s.provider(typ)
	if err != nil || p.kind != PluginBuiltIn {
		return false
	}
	switch typ {
	case "loopback", "bridge", "ptp", "macvlan", "host-device", "static", "portmap", "firewall", "bandwidth":
		return true
	}
	return false // host-local's addresses, what tuning is to restore
}

// awaitRecord waits for the record before a plugin is run that may write files,
// or has it wait: host-local has something to do before it writes.
func (op *operation) awaitRecord(ctx context.Context, verb, typ string, kind PluginKind) (context.Context, error) {
	switch {
	case verb != "ADD" || op.pending == nil || op.onlyKernel(typ):
		return ctx, nil
	case kind == PluginBuiltIn && typ == "host-local":
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

//go:build !linux

package cni

import (
	"context"

	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/netns"
)

// prepare has nothing to open.
func (*operation) prepare() {}

// hasNoDevice cannot look into a container either.
func (*attachment) hasNoDevice() bool { return false }

// avoidOthers cannot tell namespaces apart.
func (*operation) avoidOthers()  {}
func (*attachment) avoidOthers() {}

// share has no sockets to share.
func (*operation) share(ctx context.Context) context.Context { return ctx }

// follow has nothing to follow.
func (*operation) follow() error { return nil }

// lives cannot look into a container off Linux. What is recorded counts.
func (a *attachment) lives([]*attachment) (bool, error) { return true, nil }

// gone cannot look either: what is of this boot counts as there.
func (op *operation) gone() bool { return op.rebooted }

// taken cannot look into a container either.
func (a *attachment) taken() (bool, error) { return false, nil }

// openRecorded opens nothing, and returns the path as it was recorded.
func openRecorded(_ *hostns.NetNS, rec *record.Record, _ string) (*netns.Handle, string, reached, error) {
	return nil, rec.NetNS.Path, byPath, nil
}

// inhabited cannot look into a container off Linux.
func (op *operation) inhabited() bool { return false }

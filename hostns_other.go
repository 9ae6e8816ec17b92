//go:build !linux

package cni

import "context"

// prepare does nothing off Linux.
func (*operation) prepare() {}

// hasNoDevice is unknown off Linux.
func (*attachment) hasNoDevice() bool { return false }

// avoidOthers does nothing: off Linux namespaces cannot be compared.
func (*operation) avoidOthers()  {}
func (*attachment) avoidOthers() {}

// share does nothing: there are no sockets to share.
func (*operation) share(ctx context.Context) context.Context { return ctx }

// lives returns true: off Linux the record decides.
func (a *attachment) lives([]*attachment) (bool, error) { return true, nil }

// taken returns false: off Linux a container's interfaces are unknown.
func (a *attachment) taken() (bool, error) { return false, nil }

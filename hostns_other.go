//go:build !linux

package cni

import "context"

// prepare has nothing to open.
func (*operation) prepare() {}

// hasNoDevice cannot look into a container either.
func (*attachment) hasNoDevice() bool { return false }

// avoidOthers cannot tell namespaces apart.
func (*operation) avoidOthers()  {}
func (*attachment) avoidOthers() {}

// share has no sockets to share.
func (*operation) share(ctx context.Context) context.Context { return ctx }

// lives cannot look into a container off Linux. What is recorded counts.
func (a *attachment) lives([]*attachment) (bool, error) { return true, nil }

// taken cannot look into a container either.
func (a *attachment) taken() (bool, error) { return false, nil }

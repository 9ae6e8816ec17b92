//go:build !linux

package audit

import "context"

// Snapshot fails with [ErrNotSupported].
func Snapshot(context.Context, Options) (Lines, error) { return nil, ErrNotSupported }

//go:build !linux

package netfilter

import "context"

// OtherVariant returns nil: there are no rules off Linux.
func OtherVariant(context.Context, Notes) error { return nil }

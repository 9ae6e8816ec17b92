//go:build !linux

// Package thread runs functions inside network namespaces. It needs Linux.
package thread

import "github.com/embedcni/cni/netns"

// In fails with [netns.ErrNotSupported].
func In(ns *netns.Handle, fn func() error) error { return ns.Do(fn) }

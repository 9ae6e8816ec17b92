//go:build !linux

// Package links creates and changes network interfaces. It needs Linux.
package links

// Deletions are none off Linux.
type Deletions struct{}

// Begin does nothing.
func (*Deletions) Begin() {}

// End does nothing.
func (*Deletions) End() {}

// Conns are none off Linux.
type Conns struct{}

// Close does nothing.
func (*Conns) Close() error { return nil }

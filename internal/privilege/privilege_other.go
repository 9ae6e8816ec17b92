//go:build !linux

// Package privilege finds nothing that this process may not do. It needs Linux.
package privilege

// Missing returns nil: other systems have no capabilities.
func Missing() ([]string, error) { return nil, nil }

// Writable returns nil: a call that writes returns the error.
func Writable(string) error { return nil }

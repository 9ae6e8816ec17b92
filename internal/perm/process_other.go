//go:build !linux

package perm

// MissingCapabilities returns nil: other systems have no capabilities.
func MissingCapabilities() ([]string, error) { return nil, nil }

// Writable returns nil: a call that writes returns the error.
func Writable(string) error { return nil }

//go:build !linux

package thread

import (
	"errors"

	"github.com/embedcni/cni/netns"
)

// In fails with [netns.ErrNotSupported].
func In(ns *netns.Handle, fn func() error) error { return ns.Do(fn) }

// CanChangeRoot reports whether AtRoot works on this system.
const CanChangeRoot = false

// AtRoot returns an error.
func AtRoot(dir string, _ func() error) error {
	return rootError("chroot", dir, errors.ErrUnsupported)
}

// MissingCapabilities returns nil: other systems have no capabilities.
func MissingCapabilities() ([]string, error) { return nil, nil }

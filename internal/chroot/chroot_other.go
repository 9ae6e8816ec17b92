//go:build !linux

package chroot

import "errors"

// Supported reports whether Do works on this system.
const Supported = false

// Do returns an error.
func Do(dir string, _ func() error) error { return failed("chroot", dir, errors.ErrUnsupported) }

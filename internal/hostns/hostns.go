// Package hostns opens and finds the network namespace in which plugins run, and
// distinguishes it from containers' namespaces.
package hostns

import (
	"errors"
	"fmt"
)

var (
	// ErrInvalid: a path does not lead to a network namespace, or leads to the
	// host's.
	ErrInvalid = errors.New("invalid network namespace")
	// ErrNotSupported: only Linux has network namespaces.
	ErrNotSupported = fmt.Errorf("needs Linux: %w", errors.ErrUnsupported)
)

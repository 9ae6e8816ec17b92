// Package hostns opens and finds the network namespace in which plugins run, distinguishes
// it from containers' namespaces, and finds these: by path, mount and descriptor, and by the
// threads in them.
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

// FirstRoot is the root directory of the first process of the machine, or of the container
// in which this program runs.
const FirstRoot = "/proc/1/root"

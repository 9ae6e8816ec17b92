//go:build !linux

package invoke

import (
	"errors"
	"fmt"
)

// startIn calls start. Only Linux has network namespaces that a thread can
// enter.
func startIn(ns NetNS, start func() error) error {
	if ns != nil {
		return fmt.Errorf("start in a network namespace: %w", errors.ErrUnsupported)
	}
	return start()
}

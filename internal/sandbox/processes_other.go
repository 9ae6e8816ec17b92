//go:build !linux

package sandbox

import "errors"

// ErrProcessStarted is the error of NoProcess if a process was started.
var ErrProcessStarted = errors.New("a process was started")

// NoProcess needs Linux.
func NoProcess(func() error) error { return ErrNotSupported }

//go:build !linux

package sandbox

import "errors"

// ErrProcessStarted is what NoProcess returns if one was.
var ErrProcessStarted = errors.New("a process was started")

// NoProcess needs Linux.
func NoProcess(func() error) error { return ErrNotSupported }

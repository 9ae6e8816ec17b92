//go:build !linux

package record

import "errors"

// Watch watches nothing off Linux.
type Watch struct{}

// WatchFiles fails with [errors.ErrUnsupported].
func WatchFiles(string) (*Watch, error) { return nil, errors.ErrUnsupported }

// WatchNames fails with [errors.ErrUnsupported].
func WatchNames(string) (*Watch, error) { return nil, errors.ErrUnsupported }

// Now returns that anything may have changed.
func (*Watch) Now() (Changes, error) { return Changes{Lost: true}, nil }

// Close does nothing.
func (*Watch) Close() error { return nil }

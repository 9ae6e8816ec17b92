//go:build !linux

package dirwatch

import "errors"

// Watch watches nothing off Linux.
type Watch struct{}

// Changes are the files that have changed.
type Changes struct {
	Names []string
	Lost  bool
}

// Open fails with [errors.ErrUnsupported].
func Open(string) (*Watch, error) { return nil, errors.ErrUnsupported }

// OpenNames fails with [errors.ErrUnsupported].
func OpenNames(string) (*Watch, error) { return nil, errors.ErrUnsupported }

// Now returns that anything may have changed.
func (*Watch) Now() (Changes, error) { return Changes{Lost: true}, nil }

// Close does nothing.
func (*Watch) Close() error { return nil }

//go:build !linux

package plainfile

import (
	"errors"
	"io/fs"
	"os"
)

// Unnamed is a file that this system cannot make.
type Unnamed struct{}

// Prepare returns nil.
func Prepare(string, fs.FileMode) *Unnamed { return nil }

// Publish fails.
func (*Unnamed) Publish(string, []byte) (*os.File, error) {
	return nil, errors.ErrUnsupported
}

// Discard does nothing.
func (*Unnamed) Discard() {}

//go:build !linux

package plainfile

import (
	"errors"
	"io/fs"
	"os"
	"time"
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

// Now returns the time of a file made now.
func Now() time.Time { return time.Now() }

// Stamp is Now.
func Stamp(string) (time.Time, error) { return Now(), nil }

//go:build !linux

package netns

import "os"

// Handle is an open network namespace. Off Linux there is none to be had.
type Handle struct{}

// Open fails with [ErrNotSupported].
func Open(string) (*Handle, error) { return nil, ErrNotSupported }

// Current fails with [ErrNotSupported].
func Current() (*Handle, error) { return nil, ErrNotSupported }

// Do fails with [ErrNotSupported], without running fn.
func Do(string, func() error) error { return ErrNotSupported }

// CurrentID fails with [ErrNotSupported].
func CurrentID() (ID, error) { return ID{}, ErrNotSupported }

// ProcessID fails with [ErrNotSupported].
func ProcessID() (ID, error) { return ID{}, ErrNotSupported }

// Create fails with [ErrNotSupported].
func Create(string) (*Handle, error) { return nil, ErrNotSupported }

// New fails with [ErrNotSupported].
func New() (*Handle, error) { return nil, ErrNotSupported }

// List fails with [ErrNotSupported].
func List(string) ([]Entry, error) { return nil, ErrNotSupported }

// RemoveIf fails with [ErrNotSupported].
func RemoveIf(string, ID) (bool, error) { return false, ErrNotSupported }

// Pin fails with [ErrNotSupported].
func Pin(*Handle, string) error { return ErrNotSupported }

// Remove fails with [ErrNotSupported].
func Remove(string) error { return ErrNotSupported }

// ID returns the zero ID.
func (*Handle) ID() ID { return ID{} }

// File returns nil.
func (*Handle) File() *os.File { return nil }

// Do fails with [ErrNotSupported], without running fn.
func (*Handle) Do(func() error) error { return ErrNotSupported }

// Close does nothing.
func (*Handle) Close() error { return nil }

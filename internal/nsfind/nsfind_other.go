//go:build !linux

package nsfind

import (
	"errors"
	"io/fs"
)

// MountsArePrivate is false: off Linux nothing is mounted.
func MountsArePrivate(string, string) (bool, error) { return false, nil }

// LeadsNowhere reports whether an error says that nothing is at a path.
func LeadsNowhere(err error) bool { return errors.Is(err, fs.ErrNotExist) }

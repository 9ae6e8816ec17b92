//go:build !linux

package spare

import "errors"

// renameNew cannot be had: a rename elsewhere may replace a file.
func renameNew(string, string) error { return errors.ErrUnsupported }

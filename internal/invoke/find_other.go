//go:build !unix

package invoke

import "io/fs"

// mayExecute returns true: a file's name decides that, not its mode.
func mayExecute(fs.FileMode) bool {
	return true
}

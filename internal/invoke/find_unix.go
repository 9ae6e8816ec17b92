//go:build unix

package invoke

import "io/fs"

func mayExecute(mode fs.FileMode) bool {
	return mode&0o111 != 0
}

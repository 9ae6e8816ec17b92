//go:build !linux

package lock

import (
	"context"
	"os"
)

// waits is empty: nothing waits in the kernel.
type waits struct{}

// lockFile takes nothing: other systems have no lock that belongs to an open
// file and is inherited with it, and a lock that a stray close releases is worse
// than none. Only the queue of this process excludes others.
func (s *Space) lockFile(context.Context, []claim, bool, int) (*os.File, error) {
	return nil, nil
}

// hasFile reports that no keys are locked in a file.
const hasFile = false

func unlockFile(f *os.File) error {
	return f.Close()
}

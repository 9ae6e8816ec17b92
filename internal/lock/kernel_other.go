//go:build !linux

package lock

import (
	"context"
	"os"
)

// waits is what is waited for in the kernel: nothing here.
type waits struct{}

// lockFile takes nothing: other systems have no lock that belongs to an open
// file and is inherited with it, and one that a stray close drops is worse than
// none. The queue of this process has done what can be done.
func (s *Space) lockFile(context.Context, []claim) (*os.File, error) {
	return nil, nil
}

// hasFile says that keys are locked in a file.
const hasFile = false

func (s *Space) tryFile([]claim) (*os.File, error) {
	return nil, nil
}

func unlockFile(f *os.File) error {
	return f.Close()
}

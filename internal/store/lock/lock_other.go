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

// life is empty here: no lock of other systems ends with its process alone.
type life struct{}

// Life returns no name off Linux.
func (s *Space) Life() (string, error) { return "", nil }

// Lives knows no byte off Linux.
func (s *Space) Lives(string) (lives, known bool, err error) { return false, false, nil }

// State reports every key as locked by a live process.
func (s *Space) State(int64) (State, error) { return Kept, nil }

func (s *Space) mark([]claim) *os.File { return nil }

func unmark(*os.File, []claim) {}

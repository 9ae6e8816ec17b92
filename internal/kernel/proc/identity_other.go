//go:build !linux

package proc

import "fmt"

// Self returns no identity off Linux.
func Self() (string, error) { return "", nil }

// AliveIn reports every process as alive, so that none is killed.
func AliveIn(uint64, string) (bool, error) { return true, nil }

// PIDNS returns no namespace.
func PIDNS() uint64 { return 0 }

// Holder is no process.
type Holder struct {
	PID    int
	Opened bool
}

// Keys returns none.
func (*Holder) Keys() []int64 { return nil }

// Kill kills nothing.
func (*Holder) Kill() (bool, error) { return false, nil }

// Holders returns none.
func Holders(string, int64) ([]*Holder, error) { return nil, nil }

// CloseHolders does nothing.
func CloseHolders([]*Holder) {}

// Describe returns the process's number.
func Describe(pid int) string { return fmt.Sprintf("process %d", pid) }

// BootID returns a constant: only on Linux do bridges and chains vanish with a
// reboot.
func BootID() (string, error) { return "", nil }

//go:build !linux

// Package orphan deals with plugins that outlive their runtime. Off Linux they
// cannot be found, so nothing is said to have outlived anything.
package orphan

import "fmt"

// Self identifies no process off Linux.
func Self() (string, error) { return "", nil }

// Alive takes every process for alive, so that nothing is killed.
func Alive(string) (bool, error) { return true, nil }

// AliveIn takes every process for alive.
func AliveIn(uint64, string) (bool, error) { return true, nil }

// PIDNS identifies no namespace.
func PIDNS() uint64 { return 0 }

// Holder is no process.
type Holder struct {
	PID    int
	Opened bool
}

// Has is false.
func (*Holder) Has(int64) bool { return false }

// Keys are none.
func (*Holder) Keys() []int64 { return nil }

// Kill kills nothing.
func (*Holder) Kill() (bool, error) { return false, nil }

// Holders finds none.
func Holders(string, int64) ([]*Holder, error) { return nil, nil }

// Close does nothing.
func Close([]*Holder) {}

// Describe is the process's number.
func Describe(pid int) string { return fmt.Sprintf("process %d", pid) }

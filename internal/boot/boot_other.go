//go:build !linux

package boot

// ID returns a constant: only on Linux do bridges and chains vanish with a
// reboot.
func ID() (string, error) { return "", nil }

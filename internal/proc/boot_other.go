//go:build !linux

package proc

// BootID returns a constant: only on Linux do bridges and chains vanish with a
// reboot.
func BootID() (string, error) { return "", nil }

// Package boot identifies the boot of the machine.
package boot

import (
	"fmt"
	"strings"

	"github.com/embedcni/cni/internal/plainfile"
)

// ID returns an identity that changes with each boot of the machine.
func ID() (string, error) {
	data, err := plainfile.Read("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("boot id: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

package proc

import (
	"fmt"
	"strings"

	"github.com/embedcni/cni/internal/plainfile"
)

// BootID returns an identity that changes with each boot of the machine.
func BootID() (string, error) {
	data, err := plainfile.Read("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("boot id: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

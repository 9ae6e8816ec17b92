package firstadd

import (
	"fmt"
	"os"
	"strings"
)

// bootID changes with each boot of the machine.
func bootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("boot id: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}
